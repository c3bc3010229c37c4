package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// In any order, invocations begin and end, use comes and goes, containers and agents are replaced,
// the source of a pod's CPU changes, the kubelet writes old values, writes fail, and Redis is away.
// After each round no more CPU is in force than is owed or could not be taken back, and memory is
// as it was. Once everything has ended, all is whole and nothing is owed.
func TestAnythingMayHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "journal")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // it is the test's own
		g := newRig(t, context.Background(), dir)
		defer func() { g.journal.close() }() //nolint:errcheck // the test ends
		g.settings.Unguarded = rapid.Bool().Draw(t, "unguarded")
		g.safeguardPercent = rapid.SampledFrom([]int64{0, 50, 80, 95}).Draw(t, "safeguard")
		m := &model{rig: g, T: t, containers: map[string]string{}, begun: map[string]struct{}{}}
		for i := range 4 {
			m.replace(fmt.Sprintf("default/p%d", i))
		}
		g.openPool()
		t.Repeat(map[string]func(*rapid.T){
			"begin": m.begins, "end": m.ends, "use": m.uses, "exchange": m.exchanges, "pass": m.passes,
			"kubelet": m.kubelet, "replace": m.replaces, "restart": m.restarts, "break": m.breaks, "source": m.source,
			"": m.check,
		})
		m.rest()
	})
}

type model struct {
	*rig
	*rapid.T
	containers map[string]string // by pod
	begun      map[string]struct{}
	made       int
}

func (m *model) Helper()                           { m.T.Helper() }
func (m *model) Fatalf(format string, args ...any) { m.T.Fatalf(format, args...) }

func (m *model) pod(t *rapid.T) string {
	return fmt.Sprintf("default/p%d", rapid.IntRange(0, 3).Draw(t, "pod"))
}

func (m *model) container(t *rapid.T) *kernelContainer {
	return m.kernel[m.containers[m.pod(t)]]
}

func (m *model) replace(pod string) {
	if old := m.kernel[m.containers[pod]]; old != nil {
		old.gone = true
	}
	m.made++
	m.containers[pod] = fmt.Sprintf("c%d", m.made)
	m.runs(pod)
}

// runs tells the agent of a pod's container, and makes it sample the container.
func (m *model) runs(pod string) {
	c := m.run(pod, m.containers[pod], userLimits)
	m.sampled.put(pod, &container{id: m.containers[pod], cgroup: &handle{kernelContainer: c}})
}

func (m *model) samples() {
	for _, s := range m.sampled.all() {
		if _, err := s.sample(m.clock.Now); err != nil && !cgroup.Gone(err) {
			m.Fatalf("%v", err)
		}
	}
}

func (m *model) begins(t *rapid.T) {
	m.made++
	id := fmt.Sprint(m.made)
	volume := api.Resources{
		CPUMilli:    rapid.Int64Range(0, 4).Draw(t, "cpu") * 100,
		MemoryBytes: rapid.Int64Range(0, 8).Draw(t, "memory") * 32 * mib,
	}
	surplus, want := volume, api.Resources{}
	if rapid.Bool().Draw(t, "borrows") {
		surplus, want = want, surplus
	}
	m.begin(id, m.pod(t), surplus, want)
	m.begun[id] = struct{}{}
}

func (m *model) ends(t *rapid.T) {
	if len(m.begun) == 0 {
		t.Skip("nothing has begun")
	}
	ids := make([]string, 0, len(m.begun))
	for id := range m.begun {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	id := rapid.SampledFrom(ids).Draw(t, "id")
	delete(m.begun, id)
	m.end(id)
}

func (m *model) uses(t *rapid.T) {
	c := m.container(t)
	c.Memory = min(c.Limit.MemoryBytes, rapid.Int64Range(0, 700).Draw(t, "memory")*mib)
	c.CPU += time.Duration(rapid.Int64Range(0, 60).Draw(t, "cpu")) * time.Millisecond
	c.ThrottledPeriods += rapid.Int64Range(0, 1).Draw(t, "throttled")
}

func (m *model) exchanges(*rapid.T) { m.exchange() }

func (m *model) passes(t *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 6 * time.Second})
	const rounds = 30
	step := d.Draw(t, "time") / rounds
	samples := rapid.Bool().Draw(t, "samples")
	for range rounds {
		m.clock.Step(step)
		if samples {
			m.samples()
		}
		m.round(m.ctx)
	}
}

// kubelet writes the limits of a loan, which may have been recorded, to a container that the
// journal names.
func (m *model) kubelet(t *rapid.T) {
	pod := m.pod(t)
	c := m.kernel[m.containers[pod]]
	if e := m.get(pod); e == nil || !e.managed() || e.allocation == 0 || !e.wholeSince.IsZero() && m.clock.Since(e.wholeSince) > staleWindow/2 {
		t.Skip("nothing was recorded of it")
	}
	c.Limit.CPUMilli = 500 + rapid.Int64Range(-4, 4).Draw(t, "cpu")*100
	m.round(m.ctx)
}

func (m *model) replaces(t *rapid.T) { m.replace(m.pod(t)) }

func (m *model) restarts(*rapid.T) {
	m.start()
	for i := range 4 {
		pod := fmt.Sprintf("default/p%d", i)
		m.runs(pod)
	}
}

func (m *model) breaks(t *rapid.T) {
	c := m.container(t)
	c.broken = !c.broken
}

// source switches the source of a pod's CPU between node and owners. The ceiling is what the pod is
// owed.
func (m *model) source(t *rapid.T) {
	pod := m.pod(t)
	e, c := m.get(pod), m.kernel[m.containers[pod]]
	if limit := c.Limit.CPUMilli; c.broken || limit != userLimits.CPUMilli && (e == nil || limit != e.written) {
		t.Skip("what is in force is the kubelet's, which a ceiling might be")
	}
	newRanked(m.rig).inform(pod, func(info *podInfo) { info.node = !info.node })
}

func (m *model) check(t *rapid.T) {
	m.round(m.ctx)
	for m.clock.Now().Before(m.revokedBy) {
		m.rig.pass(10 * time.Millisecond)
	}
	var over, excused int64
	for pod, id := range m.containers {
		c := m.kernel[id]
		if c.Limit.MemoryBytes != userLimits.MemoryBytes {
			t.Fatalf("the memory limit of %s is %d", pod, c.Limit.MemoryBytes)
		}
		extra := c.Limit.CPUMilli - userLimits.CPUMilli
		over += extra
		if e := m.get(pod); e != nil && (c.broken || e.retry.delay.Failing()) {
			excused += max(0, extra)
		}
	}
	if over > excused {
		t.Fatalf("in force is %dm more than is owed, of which %dm is excused", over, excused)
	}
}

// rest ends everything and repairs what is broken.
func (m *model) rest() {
	for id := range m.begun {
		m.end(id)
	}
	for _, id := range m.containers {
		c := m.kernel[id]
		c.broken, c.Memory = false, min(c.Memory, 50*mib)
	}
	m.exchange()
	for range 50 {
		m.clock.Step(100 * time.Millisecond)
		m.round(m.ctx)
	}
	for pod, id := range m.containers {
		if got := m.kernel[id].Limit; got != userLimits {
			m.T.Fatalf("%s is at %v in the end, not at %v", pod, got, userLimits)
		}
	}
	if debts := m.debts(); len(debts) > 0 {
		m.T.Fatalf("debts are left: %v", debts)
	}
}
