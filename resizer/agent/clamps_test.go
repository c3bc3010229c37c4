package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/pressure"
)

// street has bystanders, which wait when a test says so.
type street struct {
	waiting bool
	broken  bool
	total   pressure.Reading
	reads   int
}

func (s *street) Read(time.Time, pressure.Functions) (pressure.Reading, error) {
	s.reads++
	if s.broken {
		return s.total, errors.New("nothing tells")
	}
	if s.waiting {
		s.total.Waited += 10 * time.Millisecond
		s.total.Beyond += 5 * time.Millisecond
	}
	return s.total, nil
}

// clampRig runs clamps on a fake kernel.
type clampRig struct {
	fatal
	*clamps
	clock      *clocktesting.FakeClock
	dir        string
	kernel     map[string]*kernelContainer
	containers []capped
	specs      map[string]int64 // by container, also of those that are not capped
	street     *street
	opens      int  // of containers, since the agent started
	knows      bool // the Tracker has told the agent of its pods
	told       *sdkmetric.ManualReader
}

func newClampRig(t fatal, dir string) *clampRig {
	g := &clampRig{fatal: t, clock: clocktesting.NewFakeClock(epoch), dir: dir, kernel: map[string]*kernelContainer{}, specs: map[string]int64{}, street: &street{}}
	g.start()
	return g
}

// start starts an agent, as after a crash of the previous one.
func (g *clampRig) start() {
	g.Helper()
	if g.clamps != nil {
		g.journal.close() //nolint:errcheck // as the kernel does
	}
	g.opens, g.knows, g.told = 0, false, sdkmetric.NewManualReader()
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(g.told)))
	if err != nil {
		g.Fatalf("%v", err)
	}
	g.clamps = &clamps{
		clock: g.clock, metrics: m, waits: g.street,
		specOf: func(_, container string) (milli int64, known bool) {
			milli, known = g.specs[container]
			return milli, known && g.knows
		},
		open: func(id string) (cgroup.Container, error) {
			g.opens++
			if k, ok := g.kernel[id]; ok && !k.gone {
				return &handle{kernelContainer: k}, nil
			}
			return nil, cgroup.ErrNotFound
		},
	}
	j, err := openJournal(g.dir, logr.Discard(), m.journalErrors)
	if err != nil {
		g.Fatalf("%v", err)
	}
	g.recall(context.Background(), logr.Discard(), j, j.load().ceilings)
}

// add runs a container of 500m with a ceiling of 2000m and the limit of its spec.
func (g *clampRig) add(id string, spec int64) *kernelContainer {
	k := &kernelContainer{Reading: cgroup.Reading{Limit: api.Resources{CPUMilli: spec}}}
	g.kernel[id], g.specs[id] = k, spec
	g.containers = append(g.containers, capped{
		pod: "default/" + id, function: "default/f", container: id, quotas: &handle{kernelContainer: k},
		allocation: 500, ceiling: 2000, spec: spec,
	})
	return k
}

// pass lets time pass, in which containers use milli CPU as far as their limits let them.
func (g *clampRig) pass(d time.Duration, milli int64) {
	g.knows = true
	for until := g.clock.Now().Add(d); g.clock.Now().Before(until); {
		const step = 10 * time.Millisecond
		g.clock.Step(step)
		for _, k := range g.kernel {
			used := milli
			if k.Limit.CPUMilli != 0 {
				used = min(used, k.Limit.CPUMilli)
			}
			k.CPU += cpuTime(used, step)
		}
		g.round(context.Background(), g.containers)
	}
}

func (g *clampRig) want(id string, cpuMilli int64) {
	g.Helper()
	if got := g.kernel[id].Limit.CPUMilli; got != cpuMilli {
		g.Fatalf("quota of %s is %dm, want %dm", id, got, cpuMilli)
	}
}

func newTestClampRig(t *testing.T) *clampRig {
	g := newClampRig(t, t.TempDir())
	t.Cleanup(func() {
		g.stop(context.Background())
		g.journal.close() //nolint:errcheck // the test ends
	})
	return g
}

// A ceiling that the API server refuses is not in the spec, and the kubelet never sets it.
func TestCeilingOfRefused(t *testing.T) {
	g := newTestClampRig(t)
	g.add("c", 500)
	g.pass(ceilingPatience+100*time.Millisecond, 0)
	g.want("c", 2000)

	// Somebody else overwrites it, and it is written again.
	g.kernel["c"].Limit.CPUMilli = 500
	g.pass(1200*time.Millisecond, 0)
	g.want("c", 2000)

	// An agent that dies leaves it to the next.
	g.start()
	g.want("c", 500)
	g.pass(ceilingPatience+100*time.Millisecond, 0)
	g.want("c", 2000)
	writes := g.kernel["c"].writes
	g.pass(10*time.Second, 0)
	if got := g.kernel["c"].writes; got != writes {
		t.Errorf("%d writes that change nothing", got-writes)
	}
	g.clamps.stop(context.Background())
	g.want("c", 500)
	if debts := g.journal.load().ceilings; len(debts) != 0 {
		t.Errorf("the journal names %v after everything was given back", debts)
	}
}

func TestCeilingThatTheKubeletDoesNotSet(t *testing.T) {
	g := newTestClampRig(t)
	k := g.add("c", 500)
	g.pass(ceilingPatience-time.Second, 500)
	g.want("c", 500)
	g.pass(2*time.Second, 500)
	g.want("c", 2000)

	// Once the spec has it, nothing is owed any more.
	g.containers[0].spec = 2000
	g.pass(time.Second, 0)
	if debts := g.journal.load().ceilings; len(debts) != 0 {
		t.Errorf("the journal names %v, though the spec has the ceiling", debts)
	}
	// Without a ceiling it has what its spec says.
	writes := k.writes
	g.containers = nil
	g.pass(time.Second, 0)
	g.want("c", 2000)
	if k.writes != writes {
		t.Error("a container was written that has what its spec says")
	}
}

// Where the kubelet sets no quotas, the agent sets none, whoever waits. If the kubelet sets one in the end, all
// is as usual.
func TestNoCeilingWithoutQuota(t *testing.T) {
	g := newTestClampRig(t)
	told := 0
	g.clamps.log = funcr.New(func(_, args string) { told += strings.Count(args, "leaving alone") }, funcr.Options{})
	k := g.add("c", 500)
	k.Limit.CPUMilli = 0
	g.street.waiting = true
	g.pass(3*ceilingPatience, 2000)
	if debts := g.journal.load().ceilings; len(debts) != 0 || k.writes != 0 {
		t.Errorf("%d writes, and the journal names %v, where the kubelet sets no quotas", k.writes, debts)
	}
	if told != 1 {
		t.Errorf("it is said %d times, want once", told)
	}
	g.clamps.stop(context.Background())
	g.want("c", 0)

	g.street.waiting = false
	g.start()
	g.pass(time.Second, 400)
	k.Limit.CPUMilli = 500
	g.pass(2*inForceEvery, 400)
	g.want("c", 500)
	g.pass(ceilingPatience, 400)
	g.want("c", 2000)
	k.Limit.CPUMilli = 0 // by somebody else
	g.pass(2*inForceEvery, 400)
	g.want("c", 2000)
	g.clamps.stop(context.Background())
	g.want("c", 500)
}

func TestCeilingTakenBack(t *testing.T) {
	g := newTestClampRig(t)
	k := g.add("c", 500)
	g.pass(ceilingPatience+time.Second, 0)
	g.containers = nil
	k.broken = true
	g.pass(time.Second, 0)
	g.want("c", 2000)
	k.broken = false
	g.pass(time.Second, 0)
	g.want("c", 500)
	if len(g.debts) != 0 {
		t.Errorf("debts are left: %v", g.debts)
	}
}

// Looking for a container walks through all cgroups of the node. One that has ended is not looked for again, and
// one that cannot be written is looked for once per beat.
func TestDebtsAreNotLookedForInEachRound(t *testing.T) {
	for name, tc := range map[string]struct {
		fail func(*kernelContainer)
		most int
	}{
		"it has ended":            {func(k *kernelContainer) { k.gone = true }, 1},
		"it cannot be written to": {func(k *kernelContainer) { k.broken = true }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := newTestClampRig(t)
			k := g.add("c", 500)
			g.pass(ceilingPatience+time.Second, 0)
			g.want("c", 2000)
			g.containers = nil
			tc.fail(k)
			g.start()
			g.pass(time.Second, 0)
			if g.opens > tc.most {
				t.Errorf("the container was looked for %d times in a second, want %d at most", g.opens, tc.most)
			}
			k.broken = false
			g.pass(beatEvery, 0)
			if len(g.debts) != 0 {
				t.Errorf("debts are left: %v", g.debts)
			}
		})
	}
}

// Each look for a container takes long on a large node, and donors would wait for their CPU meanwhile. However many
// containers have lost their ceilings at once, a round looks for few of them.
func TestRoundsAreShortHoweverManyDebts(t *testing.T) {
	g := newTestClampRig(t)
	for i := range 40 {
		g.add(fmt.Sprint("c", i), 500)
	}
	g.pass(ceilingPatience+time.Second, 0)
	for _, k := range g.kernel {
		k.gone = true
	}
	g.containers, g.opens = nil, 0
	open := g.open
	g.clamps.open = func(id string) (cgroup.Container, error) {
		g.clock.Step(repayFor / 2)
		return open(id)
	}
	for before := 0; len(g.debts) > 0 || before == 0; before = g.opens {
		g.nextAt = g.clock.Now()
		if g.round(t.Context(), nil); g.opens-before > 2 || g.opens == before {
			t.Fatalf("a round looked for %d containers, want 1 or 2", g.opens-before)
		}
	}
	if left := g.journal.load().ceilings; g.opens != 40 || len(left) > 0 {
		t.Errorf("40 containers were looked for %d times, and the journal names %v", g.opens, left)
	}
}

// The agent reports the credits of a function only as long as it has a container of it.
func TestCreditsOfNobody(t *testing.T) {
	g := newTestClampRig(t)
	credits := func() (functions int) {
		var data metricdata.ResourceMetrics
		if err := g.told.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		for _, scope := range data.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name == "libra.agent.credits" {
					functions += len(m.Data.(metricdata.Gauge[float64]).DataPoints)
				}
			}
		}
		return functions
	}
	g.add("c", 2000)
	g.pass(beatEvery+regainEvery, 100)
	if got := credits(); got != 1 {
		t.Fatalf("credits of %d functions are told, want of one", got)
	}
	g.containers = nil
	g.pass(beatEvery+regainEvery, 100)
	if got := credits(); got != 0 {
		t.Errorf("credits of %d functions are told that have no container, want none", got)
	}
}

// unreadable is a container that cannot be read for a moment.
type unreadable struct{ cgroup.Container }

func (unreadable) CPU() (time.Duration, error) { return 0, errors.New("too many open files") }

// A failed read does not give a function its credits back.
func TestCreditsAfterFailedRead(t *testing.T) {
	g := newTestClampRig(t)
	k := g.add("c", 2000)
	g.pass(time.Second, 2000)
	g.street.waiting = true
	g.pass(time.Second, 2000)
	before := g.clamp.levels["c"].credit
	if before >= fullCredit(500) {
		t.Fatal("nothing was paid")
	}
	g.containers[0].quotas = unreadable{}
	g.pass(2*regainEvery, 2000)
	g.containers[0].quotas = &handle{kernelContainer: k}
	g.pass(2*regainEvery, 2000)
	if after := g.clamp.levels["c"].credit; after > before {
		t.Errorf("credit is %v after a read that failed, and was %v", after, before)
	}
}

// The clamps forget what they owe a container when the reflex sets its quota instead: otherwise the next agent
// would lower it to its allocation, whatever its spec says by then.
func TestOwedByClampsOnly(t *testing.T) {
	g := newTestClampRig(t)
	g.add("c", 500)
	g.pass(ceilingPatience+time.Second, 0)
	if debts := g.journal.load().ceilings; len(debts) != 1 {
		t.Fatalf("the journal names %v, want the container that is above its spec", debts)
	}
	g.containers[0].bound = func(int64) {}
	g.pass(time.Second, 0)
	if debts := g.journal.load().ceilings; len(debts) != 0 {
		t.Errorf("the journal names %v, though the reflex sets the quota", debts)
	}
}

func TestNoCeilingWithoutJournal(t *testing.T) {
	g := newTestClampRig(t)
	g.journal.dir += "/away"
	g.add("c", 500)
	g.pass(2*ceilingPatience, 2000)
	g.want("c", 500)
}

func TestClampHolds(t *testing.T) {
	g := newTestClampRig(t)
	k := g.add("c", 2000)
	g.pass(time.Second, 2000)
	g.want("c", 2000)
	if k.writes != 0 {
		t.Errorf("%d writes while nobody waits and all are at their ceilings", k.writes)
	}
	g.street.waiting = true
	g.pass(40*time.Millisecond, 2000)
	g.want("c", 500)
	g.pass(time.Second, 2000)
	g.want("c", 500)
	if k.writes != 1 {
		t.Errorf("%d writes while it is held, want one: each gives a period's quota anew", k.writes)
	}
	g.street.waiting = false
	g.pass(1200*time.Millisecond, 2000)
	g.want("c", 2000)
	if k.writes > 1+regainShares {
		t.Errorf("%d writes until all is regained, want at most %d", k.writes, 1+regainShares)
	}

	// Bystanders are not read while functions keep to their allocations.
	g.pass(200*time.Millisecond, 400)
	reads := g.street.reads
	g.street.waiting = true
	g.pass(time.Second, 400)
	if g.street.reads != reads {
		t.Error("bystanders were read while no function uses more than its allocation")
	}
	g.want("c", 2000)

	g.pass(200*time.Millisecond, 100)
	// Its use in a moment is no more than its quota would have allowed.
	g.pass(20*time.Millisecond, 2000)
	g.pass(100*time.Millisecond, 100)
	g.want("c", 2000)
}

func TestClampBlind(t *testing.T) {
	g := newTestClampRig(t)
	g.add("c", 2000)
	g.street.broken = true
	g.pass(time.Second, 2000)
	g.want("c", 500)
	g.off = true
	g.pass(2*time.Second, 2000)
	g.want("c", 2000)
}

// If the agent dies while it holds a container, the next agent gives the container its spec's
// limit, and where the journal could not be written its ceiling.
func TestHeldAcrossRestart(t *testing.T) {
	g := newTestClampRig(t)
	g.add("d", 2000)
	g.street.waiting = true
	g.pass(time.Second, 2000)
	g.want("d", 500)
	g.start()
	g.street.waiting = false
	g.want("d", 500)
	g.pass(regainEvery, 0)
	g.want("d", 2000)

	g.journal.dir += "/away"
	g.add("c", 2000)
	g.street.waiting = true
	g.pass(time.Second, 2000)
	g.want("c", 500)
	g.street.waiting = false
	g.start()
	g.pass(ceilingPatience+time.Second, 0)
	g.want("c", 2000)
}

// A container that was held gets back what its pod's spec says when it is given back, which may be less than the spec said
// when it was held: the stop for all functions is such a change.
func TestAHeldContainerGetsWhatItsSpecSaysNow(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(g *clampRig)
		want   int64
	}{
		"the same":                {func(*clampRig) {}, 2000},
		"less, as for all":        {func(g *clampRig) { g.specs["c"] = 500 }, 500},
		"nobody knows":            {func(g *clampRig) { delete(g.specs, "c") }, 500},
		"it was raised meanwhile": {func(g *clampRig) { g.specs["c"], g.kernel["c"].Limit.CPUMilli = 1800, 1800 }, 1800},
	} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", after a crash: ", crashes), func(t *testing.T) {
				g := newTestClampRig(t)
				g.add("c", 2000)
				g.street.waiting = true
				g.pass(time.Second, 2000)
				g.want("c", 500)
				g.street.waiting, g.containers = false, nil
				tc.change(g)
				if crashes {
					g.start()
				}
				g.pass(unclaimedTime+2*beatEvery, 0)
				g.want("c", tc.want)
				if left := g.journal.load().ceilings; len(g.debts) > 0 || len(left) > 0 {
					t.Errorf("debts %v are left, and the journal names %v", g.debts, left)
				}
			})
		}
	}
}

// Whatever happens, no quota in the kernel is below the allocation, above the ceiling or
// unlimited, except for what somebody else wrote and nobody has read yet; and when the agent
// stops, every container has what its spec says.
func TestCeilingProperties(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		g := newClampRig(t, fmt.Sprint(dir, "/", run))
		for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
			g.add(fmt.Sprint("c", i), rapid.SampledFrom([]int64{500, 2000}).Draw(t, "spec"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for id, k := range g.kernel {
					if l := k.Limit.CPUMilli; l < 500 || l > 2000 {
						t.Fatalf("quota of %s is %dm", id, l)
					}
				}
			},
			"pass": func(t *rapid.T) {
				g.street.waiting = rapid.Bool().Draw(t, "waiting")
				g.street.broken = rapid.IntRange(0, 9).Draw(t, "broken") == 0
				g.pass(time.Duration(rapid.SampledFrom([]int{10, 100, 1000, 6000}).Draw(t, "ms"))*time.Millisecond, rapid.Int64Range(0, 2500).Draw(t, "used"))
			},
			"crash": func(*rapid.T) { g.start() },
			"overwrite": func(t *rapid.T) {
				if len(g.containers) == 0 {
					t.Skip("none")
				}
				c := rapid.SampledFrom(g.containers).Draw(t, "container")
				g.kernel[c.container].Limit.CPUMilli = c.spec
			},
			"spec": func(t *rapid.T) {
				if len(g.containers) == 0 {
					t.Skip("none")
				}
				c := &g.containers[rapid.IntRange(0, len(g.containers)-1).Draw(t, "container")]
				c.spec = rapid.SampledFrom([]int64{500, 2000}).Draw(t, "spec")
				g.specs[c.container], g.kernel[c.container].Limit.CPUMilli = c.spec, c.spec // by the kubelet
				g.pass(regainEvery, 0)
			},
			"no longer capped": func(t *rapid.T) {
				if len(g.containers) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(g.containers)-1).Draw(t, "container")
				id := g.containers[i].container
				spec := rapid.SampledFrom([]int64{500, 2000}).Draw(t, "spec")
				g.specs[id], g.kernel[id].Limit.CPUMilli = spec, spec // by the kubelet
				g.containers = slices.Delete(g.containers, i, i+1)
				g.pass(regainEvery, 0)
			},
		})
		g.street.broken, g.street.waiting = false, false
		g.knows = true
		g.clamps.stop(context.Background())
		for id, spec := range g.specs {
			if got := g.kernel[id].Limit.CPUMilli; got != spec {
				t.Fatalf("quota of %s is %dm after the agent stopped, want %dm as its spec says", id, got, spec)
			}
		}
	})
}

// Loans between owners shrink while bystanders wait, and the donors have the CPU.
func TestClampLoans(t *testing.T) {
	g := newTestRig(t)
	s := &street{}
	g.clamps = &clamps{clock: g.clock, log: logr.Discard(), metrics: g.reflex.metrics, waits: s, open: g.open, specOf: g.reflex.specOf}
	g.lend()
	burn := func(d time.Duration) {
		for range d / (10 * time.Millisecond) {
			g.kernel["borrower"].CPU += cpuTime(g.kernel["borrower"].Limit.CPUMilli, 10*time.Millisecond)
			g.pass(10 * time.Millisecond)
		}
	}
	burn(200 * time.Millisecond)
	g.want("borrower", 700)
	s.waiting = true
	burn(300 * time.Millisecond)
	g.want("borrower", 500)
	g.want("donor", 500)
	s.waiting = false
	burn(1200 * time.Millisecond)
	g.want("borrower", 700)
	g.want("donor", 300)
}
