package agent

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

// A need is never a limit that use is near, except for the largest that there is. It does not fall
// before use has fallen well below, and asking twice gives the same need.
func TestNeedOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		owed := rapid.Int64Range(mib, 1<<34).Draw(t, "owed")
		var need int64
		for range 20 {
			used := rapid.Int64Range(0, 2*needMost*owed).Draw(t, "used")
			before := need
			need = needOf(used, owed, before)
			has := max(need, owed)
			switch {
			case need != 0 && (need <= owed || need > stepped(needMost*owed)):
				t.Fatalf("%d is needed by who is owed %d", need, owed)
			case crowds(used, has) && has < needMost*owed:
				t.Fatalf("%d is used and %d needed", used, need)
			case has < before && float64(used) >= easyPart*float64(has):
				t.Fatalf("%d is needed in place of %d, with %d in use", need, before, used)
			}
			if again := needOf(used, owed, need); again != need {
				t.Fatalf("%d is needed, and then %d", need, again)
			}
		}
	})
}

func TestPinned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		used := rapid.Int64Range(0, 1<<40).Draw(t, "used")
		if kept := pinned(used); kept < used+used/10 || kept < used+32*mib {
			t.Fatalf("pinned(%d) = %d: a margin of 32 MiB and of a tenth is missing", used, kept)
		}
	})
}

// memoryRig is a rig with a sampler of the pods' memory, on a node of 10 GiB.
type memoryRig struct {
	*rig
	node nodeMemory
}

func newMemoryRig(t *testing.T) *memoryRig {
	return &memoryRig{newTestRig(t), nodeMemory{total: 10 << 30, free: 1 << 30, available: 8 << 30}}
}

func (m *memoryRig) run(pod string, borrows bool) {
	m.Helper()
	m.rig.run(pod, pod, userLimits)
	m.inform(pod, func(i *podInfo) { i.borrows, i.memoryOwed = borrows, userLimits.MemoryBytes })
	m.sampled.put(pod, &container{id: pod, cgroup: &handle{kernelContainer: m.kernel[pod]}})
}

// inform changes what is known of a pod.
func (m *memoryRig) inform(pod string, change func(*podInfo)) {
	(&ranked{rig: m.rig}).inform(pod, change)
}

// uses samples a pod as often as one that works, with usedMiB in use all the time.
func (m *memoryRig) uses(pod string, usedMiB int64, lasts time.Duration) {
	m.Helper()
	m.kernel[pod].Memory = usedMiB * mib
	for range lasts / sampleEvery {
		m.clock.Step(sampleEvery)
		if err := m.sampled.get(pod).sampleWhole(m.clock.Now); err != nil {
			m.Fatalf("%v", err)
		}
	}
}

// needs samples the pods in usedMiB, with so much in use, and returns the needs that are told, in
// MiB.
func (m *memoryRig) needs(usedMiB map[string]int64) map[string]int64 {
	m.Helper()
	for pod, used := range usedMiB {
		m.kernel[pod].Memory = used * mib
		if err := m.sampled.get(pod).sampleWhole(m.clock.Now); err != nil {
			m.Fatalf("%v", err)
		}
	}
	m.readMemory(m.ctx, m.node)
	needs := map[string]int64{}
	for pod, bytes := range m.reflex.needs() {
		needs[pod] = bytes / mib
	}
	return needs
}

// give sets the limit in a pod's spec and the one in the kernel, in MiB.
func (m *memoryRig) give(pod string, spec, inForce int64) {
	m.get(pod).info.limits.MemoryBytes, m.kernel[pod].Limit.MemoryBytes = spec*mib, inForce*mib
}

func (m *memoryRig) short() bool { return slices.ContainsFunc(m.entries, m.isShort) }

func (m *memoryRig) expect(t *testing.T, usedMiB, want map[string]int64) {
	t.Helper()
	if diff := cmp.Diff(want, m.needs(usedMiB)); diff != "" {
		t.Errorf("needs with %v in use (-want +got):\n%s", usedMiB, diff)
	}
}

// A limit that is about to be lowered is kept as soon as more of it is in use again than the lower
// one is good for: the kubelet lowers it by what was in use a while ago.
func TestNeedsOfALimitThatIsLowered(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.kernel["a/p"].Limit.MemoryBytes = 1024 * mib
	m.expect(t, map[string]int64{"a/p": 100}, map[string]int64{})
	m.kernel["a/p"].Memory = 400 * mib
	if err := m.sampled.get("a/p").sampleWhole(m.clock.Now); err != nil {
		t.Fatal(err)
	}
	c := m.sampled.get("a/p")
	if spec := c.spec.Load(); spec != userLimits.MemoryBytes || !c.lookAgain.Load() {
		t.Errorf("the sampler is told of a limit of %d bytes in the spec, to look again: %v", spec, c.lookAgain.Load())
	}
	if covered := c.covered.Load(); covered != userLimits.MemoryBytes || !c.sinking.Load() || !m.short() {
		t.Errorf("told of above %d bytes, sinking: %v, said to be near a limit: %v", covered, c.sinking.Load(), m.short())
	}
	m.expect(t, nil, map[string]int64{"a/p": 1024})
	if c.sinking.Load() || m.short() {
		t.Errorf("sinking: %v, said to be near a limit: %v, after it was asked for", c.sinking.Load(), m.short())
	}
}

// A container may have nothing more if another manager has changed a limit in its pod. It keeps
// what it uses of what it has until it no longer uses it.
func TestNeedsOfAPodThatAnotherManages(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.inform("a/p", func(i *podInfo) { i.foreign = true })
	m.expect(t, map[string]int64{"a/p": 500}, map[string]int64{})
	m.kernel["a/p"].Limit.MemoryBytes = 1024 * mib
	m.expect(t, map[string]int64{"a/p": 1000}, map[string]int64{"a/p": 1024})
	m.uses("a/p", 100, 2*recentWindow)
	m.expect(t, nil, map[string]int64{})
	c := m.sampled.get("a/p")
	if covered := c.covered.Load(); covered != userLimits.MemoryBytes {
		t.Errorf("told of above %d bytes, want above what it is owed, to which the limit is lowered", covered)
	}
	m.kernel["a/p"].Memory = 400 * mib
	if err := c.sampleWhole(m.clock.Now); err != nil {
		t.Fatal(err)
	}
	if !m.short() {
		t.Error("not said to be near the lower limit")
	}
	m.expect(t, nil, map[string]int64{"a/p": 1024})
}

// Nothing about a pod whose limits another manager set is the agent's to change, under source node, too. Above
// all it must not guard the container's memory: nobody raises the limit, so the container would be slowed down
// for as long as it uses more.
func TestPodThatAnotherManages(t *testing.T) {
	const half = 300
	for name, tc := range map[string]struct {
		foreign   bool
		limits    api.Resources
		inForce   int64 // MiB
		wantGuard int64
	}{
		"nobody":         {false, userLimits, half, guardOf(half * mib)},
		"CPU and memory": {true, api.Resources{CPUMilli: 900, MemoryBytes: half * mib}, half, 0},
		"CPU":            {true, api.Resources{CPUMilli: 900, MemoryBytes: userLimits.MemoryBytes}, half, 0},
		"memory":         {true, api.Resources{CPUMilli: 500, MemoryBytes: half * mib}, half, 0},
		// A kubelet that cannot resize leaves the higher limit in force.
		"memory, not in force": {true, api.Resources{CPUMilli: 500, MemoryBytes: half * mib}, userLimits.MemoryBytes / mib, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemoryRig(t)
			m.run("a/p", true)
			m.exchange()
			m.kernel["a/p"].Limit = api.Resources{CPUMilli: tc.limits.CPUMilli, MemoryBytes: tc.inForce * mib}
			m.inform("a/p", func(i *podInfo) {
				i.node, i.ceilingMilli, i.limits, i.foreign = true, 2000, tc.limits, tc.foreign
			})
			m.expect(t, map[string]int64{"a/p": 200}, map[string]int64{})
			if err := m.sampled.get("a/p").guardMemory(); err != nil {
				t.Fatal(err)
			}
			if got := m.kernel["a/p"].guard; got != tc.wantGuard {
				t.Errorf("slowed down beyond %d bytes, want %d", got, tc.wantGuard)
			}
			m.rest(2 * time.Second)
			if got := m.named()["a/p"]; got == tc.foreign {
				t.Errorf("the pool is told that it takes part: %v", got)
			}
			e := m.get("a/p")
			if got := e.weighed(); got == tc.foreign {
				t.Errorf("its weight may change: %v", got)
			}
			if _, got := usesIdle(e); got == tc.foreign {
				t.Errorf("it may use idle CPU: %v", got)
			}
			if m.kernel["a/p"].writes != 0 {
				t.Error("its limit was written")
			}
		})
	}
}

func TestNeeds(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.run("a/q", true)
	m.run("a/lends", false)
	m.expect(t, map[string]int64{"a/p": 358, "a/lends": 500}, map[string]int64{})
	if m.short() {
		t.Error("said to be near a limit")
	}
	m.kernel["a/p"].Memory = 359 * mib
	if err := m.sampled.get("a/p").sampleWhole(m.clock.Now); err != nil {
		t.Fatal(err)
	}
	if !m.short() {
		t.Error("not said to be near a limit, with 359 of 512 MiB in use")
	}
	m.expect(t, map[string]int64{"a/p": 359}, map[string]int64{"a/p": 1024})
	if m.short() {
		t.Error("said to be near a limit after more was asked for")
	}
	m.kernel["a/p"].Limit.MemoryBytes = 1024 * mib // the kubelet's
	m.expect(t, map[string]int64{"a/p": 310}, map[string]int64{"a/p": 1024})
	m.uses("a/p", 300, 2*recentWindow)
	m.expect(t, nil, map[string]int64{})
	m.expect(t, map[string]int64{"a/p": 900}, map[string]int64{"a/p": 2048})
	m.expect(t, map[string]int64{"a/p": 5000}, map[string]int64{"a/p": 3072}) // a quarter of the node above what it is owed

	// Others get nothing any more, and this one keeps what it has.
	m.expect(t, map[string]int64{"a/q": 400}, map[string]int64{"a/p": 3072})
	m.node.available = 0
	m.expect(t, map[string]int64{"a/q": 500}, map[string]int64{"a/p": 3072})
	if got := m.sampled.get("a/q").covered.Load(); got != mostBytes {
		t.Errorf("told of above %d bytes, though the node has none", got)
	}
	if m.short() {
		t.Error("asked for again before the next beat")
	}
	if n := m.counted("libra.agent.rescues", rescueNoRoom); n < 1 {
		t.Error("that there is no room was not counted")
	}
}

// Requests that come as often as heartbeats may each have given their memory back when a heartbeat is sent.
func TestNeedsOfRequestsInStepWithHeartbeats(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.expect(t, map[string]int64{"a/p": 400}, map[string]int64{"a/p": 1024})
	m.kernel["a/p"].Limit.MemoryBytes = 1024 * mib
	for range 10 {
		m.uses("a/p", 100, beatEvery/4)
		m.expect(t, nil, map[string]int64{"a/p": 1024})
		m.uses("a/p", 400, beatEvery/2)
		m.uses("a/p", 100, beatEvery/4)
		m.expect(t, nil, map[string]int64{"a/p": 1024})
		m.expect(t, nil, map[string]int64{"a/p": 1024}) // the agent sends another at once
	}
	m.uses("a/p", 100, 2*recentWindow)
	m.expect(t, nil, map[string]int64{})
}

// The agent asks at once for what is predicted and no invocation lends, and stops asking when the
// invocation has ended.
func TestShortOfMemory(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.openPool()
	want := api.Resources{MemoryBytes: 200 * mib}
	hear := func() {
		t.Helper()
		if err := m.link.read(m.ctx); err != nil {
			t.Fatal(err)
		}
		m.learn(<-m.link.states)
	}
	m.expect(t, map[string]int64{"a/p": 10}, map[string]int64{})
	m.begin("1", "a/p", api.Resources{}, want)
	m.beatDue = false
	hear()
	if !m.beatDue {
		t.Error("the pool is not told at once")
	}
	m.expect(t, map[string]int64{"a/p": 10}, map[string]int64{"a/p": 712})
	m.node.available = 0
	m.expect(t, nil, map[string]int64{"a/p": 712}) // which it has
	m.end("1")
	hear()
	m.expect(t, nil, map[string]int64{})
	m.begin("2", "a/p", api.Resources{}, want)
	hear()
	m.expect(t, nil, map[string]int64{})
	m.beatDue = false
	hear()
	if m.beatDue {
		t.Error("the pool is told again and again of what the node has not")
	}
}

// A need that is asked for and not met is given up, so that others may have the memory, and then
// asked for again.
func TestUnmetNeeds(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.openPool()
	crowded := map[string]int64{"a/p": 400}
	m.expect(t, crowded, map[string]int64{"a/p": 1024})
	m.clock.Step(unmetPatience - time.Millisecond)
	m.expect(t, crowded, map[string]int64{"a/p": 1024})
	m.clock.Step(time.Millisecond)
	m.expect(t, crowded, map[string]int64{})
	if m.aboveMemory != 0 {
		t.Errorf("%d bytes are set aside for it", m.aboveMemory)
	}
	m.clock.Step(unmetPause - time.Millisecond)
	m.expect(t, crowded, map[string]int64{})
	m.clock.Step(time.Millisecond)
	m.expect(t, crowded, map[string]int64{"a/p": 1024})
	m.give("a/p", 1024, 1024)
	m.clock.Step(2 * unmetPatience)
	m.expect(t, crowded, map[string]int64{"a/p": 1024})
	// More is not to be had, but it keeps what it has as long as that is used.
	more := map[string]int64{"a/p": 900}
	m.expect(t, more, map[string]int64{"a/p": 2048})
	m.clock.Step(unmetPatience)
	m.expect(t, more, map[string]int64{"a/p": 1024})
	m.expect(t, more, map[string]int64{"a/p": 1024})
	m.clock.Step(unmetPause)
	m.node.available = 0
	m.expect(t, more, map[string]int64{"a/p": 1024})
	m.inform("a/p", func(i *podInfo) { i.borrows = false })
	m.expect(t, more, map[string]int64{"a/p": 1024})
	m.uses("a/p", 100, 2*recentWindow)
	m.expect(t, nil, map[string]int64{})
	if n := m.counted("libra.agent.rescues", rescueUnmet); n != 2 {
		t.Errorf("%d were not given, want 2", n)
	}
}

// A container is looked at often when it may run short of its own limit, even while it has a higher one.
func TestFillingARaisedLimit(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.give("a/p", 2048, 2048)
	m.expect(t, map[string]int64{"a/p": 200}, map[string]int64{})
	for used, want := range map[int64]bool{250: false, 300: true} {
		m.uses("a/p", used, sampleEvery)
		if got := m.sampled.get("a/p").fills.Load(); got != want {
			t.Errorf("with %d MiB of 512 in use, its memory is filling: %v", used, got)
		}
	}
}

// A node that has not all that is needed gives what it has, even if the container uses little at the moment.
func TestPartOfANeedBetweenTwoRequests(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.node.available = m.node.total/reservePart + 300*mib
	m.uses("a/p", 400, beatEvery/2)
	m.uses("a/p", 100, beatEvery/2)
	m.expect(t, nil, map[string]int64{"a/p": 812})
	if got := m.sampled.get("a/p").covered.Load(); got != 812*mib {
		t.Errorf("not told of what is above its limit, but above %d bytes", got)
	}
}

// A limit that was lowered is raised again to what was had when more was refused.
func TestRefusedNeedsAfterALowerLimit(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.openPool()
	m.give("a/p", 1024, 1024)
	m.expect(t, map[string]int64{"a/p": 900}, map[string]int64{"a/p": 2048})
	m.clock.Step(unmetPatience)
	m.expect(t, nil, map[string]int64{"a/p": 1024})
	m.uses("a/p", 100, 2*recentWindow)
	m.expect(t, nil, map[string]int64{})
	c := m.sampled.get("a/p")
	for _, inForce := range []int64{1024, 512} { // as the kubelet lowers it
		m.give("a/p", 512, inForce)
		m.expect(t, map[string]int64{"a/p": 100}, map[string]int64{})
		if got := c.covered.Load(); got != 512*mib || !c.rescuable.Load() {
			t.Errorf("with a limit of %d MiB in force: told of what is above %d bytes; can be rescued: %v", inForce, got, c.rescuable.Load())
		}
	}
	m.uses("a/p", 400, sampleEvery)
	if !m.short() {
		t.Error("not said to be near a limit")
	}
	// A full node does not shorten the rest.
	available := m.node.available
	m.node.available = 0
	m.expect(t, nil, map[string]int64{})
	m.node.available = available
	m.uses("a/p", 400, beatEvery)
	m.expect(t, nil, map[string]int64{"a/p": 1024})
	if !c.rescuable.Load() {
		t.Error("not slowed down while a raise is on its way")
	}
	m.give("a/p", 1024, 1024)
	m.expect(t, map[string]int64{"a/p": 900}, map[string]int64{"a/p": 1024})
	if m.short() {
		t.Error("asked for what was refused, before its time")
	}
	m.clock.Step(unmetPause)
	m.expect(t, nil, map[string]int64{"a/p": 2048})
}

// A container that does not get what it needs is slowed down for it less and less often, until a
// raise comes.
func TestUnmetNeedsRestEverLonger(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.openPool()
	c, crowded, asked := m.sampled.get("a/p"), map[string]int64{"a/p": 400}, map[string]int64{"a/p": 1024}
	for _, seconds := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		m.expect(t, crowded, asked)
		if !c.rescuable.Load() {
			t.Errorf("before a rest of %d s: not slowed down while more is asked for", seconds)
		}
		m.clock.Step(unmetPatience)
		m.expect(t, crowded, map[string]int64{})
		m.clock.Step(seconds*time.Second - time.Millisecond)
		m.expect(t, crowded, map[string]int64{})
		if c.rescuable.Load() {
			t.Errorf("in a rest of %d s: slowed down though nothing is asked for", seconds)
		}
		m.clock.Step(time.Millisecond)
	}
	m.expect(t, crowded, asked)
	m.give("a/p", 1024, 1024)
	more := map[string]int64{"a/p": 900}
	m.expect(t, more, map[string]int64{"a/p": 2048})
	m.clock.Step(unmetPatience)
	m.expect(t, more, asked)
	m.clock.Step(unmetPause)
	m.expect(t, more, map[string]int64{"a/p": 2048})
}

// A raise that the kubelet does not put in force, or whose lowering nobody takes back, does not
// slow a container down for ever. What the container is to have stays asked for.
func TestARaiseThatIsNotInForce(t *testing.T) {
	for name, tc := range map[string]struct{ used, spec, inForce int64 }{
		"the kubelet hangs":          {400, 1024, 512},
		"the limit is to be lowered": {460, 512, 1024},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemoryRig(t)
			m.run("a/p", true)
			m.openPool()
			c, crowded, asked := m.sampled.get("a/p"), map[string]int64{"a/p": tc.used}, map[string]int64{"a/p": 1024}
			m.expect(t, crowded, asked)
			m.give("a/p", tc.spec, tc.inForce)
			m.clock.Step(unmetPatience - time.Millisecond)
			if m.expect(t, crowded, asked); !c.rescuable.Load() {
				t.Error("not slowed down while more is to come")
			}
			m.clock.Step(time.Millisecond)
			m.expect(t, crowded, asked)
			if c.rescuable.Load() {
				t.Error("slowed down though nothing has come")
			}
			m.give("a/p", 2048, 2048)
			if m.expect(t, crowded, asked); !c.rescuable.Load() {
				t.Error("not slowed down near a limit that came")
			}
		})
	}
}

// Use goes before predictions. A predicted need is never asked for in part, nor beyond the most
// that may be needed.
func TestUseGoesBeforePredictions(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/guess", true)
	m.run("b/real", true)
	m.openPool()
	m.begin("1", "a/guess", api.Resources{}, api.Resources{MemoryBytes: 100 << 30})
	if err := m.link.read(m.ctx); err != nil {
		t.Fatal(err)
	}
	m.learn(<-m.link.states)
	m.expect(t, map[string]int64{"a/guess": 10, "b/real": 500}, map[string]int64{"b/real": 1024})
	m.node = nodeMemory{total: 40 << 30, available: 30 << 30}
	m.clock.Step(beatEvery)
	m.expect(t, nil, map[string]int64{"a/guess": 4096, "b/real": 1024})
}

// A container that was not sampled yet keeps what its spec gives it.
func TestNeedsBeforeTheFirstSample(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.inform("a/p", func(i *podInfo) { i.limits.MemoryBytes = 1024 * mib })
	m.expect(t, nil, map[string]int64{"a/p": 1024})
	m.kernel["a/p"].Limit.MemoryBytes = 1024 * mib
	m.expect(t, map[string]int64{"a/p": 10}, map[string]int64{})
}

// The pool refuses a heartbeat that asks for more than it accepts of anything.
func TestNeedsFitAHeartbeat(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.get("a/p").memory.need = 2 * mostBytes
	if got := m.reflex.needs()["a/p"]; got != mostBytes {
		t.Errorf("needs %d bytes, want the most that the pool accepts, %d", got, mostBytes)
	}
}

// A container that is not to be changed needs nothing.
func TestNoNeeds(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	crowded := map[string]int64{"a/p": 500}
	for name, change := range map[string]func(i *podInfo){
		"only observed":   func(i *podInfo) { i.observed = "for a reason" },
		"no memory limit": func(i *podInfo) { i.memoryOwed = 0 },
		"mode lend":       func(i *podInfo) { i.borrows = false },
	} {
		var before podInfo
		m.inform("a/p", func(i *podInfo) { before = *i })
		m.expect(t, crowded, map[string]int64{"a/p": 1024})
		m.inform("a/p", change)
		if got := m.needs(crowded); len(got) > 0 {
			t.Errorf("%s: needs %v", name, got)
		}
		m.inform("a/p", func(i *podInfo) { *i = before })
	}
	m.stopping = true
	m.expect(t, crowded, map[string]int64{})
}

// Whatever containers use, the limits that are asked for never exceed what the containers are owed
// by more than the node can spare, except for what is in use already.
func TestNeedsFitTheNode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMemoryRig(t)
		pods := []string{"a/p", "a/q", "a/r"}
		for _, pod := range pods {
			m.run(pod, true)
		}
		for range rapid.IntRange(1, 10).Draw(rt, "beats") {
			used := map[string]int64{}
			for _, pod := range pods {
				used[pod] = rapid.Int64Range(0, m.kernel[pod].Limit.MemoryBytes/mib).Draw(rt, pod)
			}
			m.node.available = rapid.Int64Range(0, 10<<30).Draw(rt, "available")
			before := m.aboveMemory
			needs := m.needs(used)
			above := int64(0)
			for _, pod := range pods {
				c := m.kernel[pod]
				above += max(c.Limit.MemoryBytes, needs[pod]*mib) - userLimits.MemoryBytes
				if rapid.Bool().Draw(rt, "the kubelet follows") {
					c.Limit.MemoryBytes = max(userLimits.MemoryBytes, needs[pod]*mib, c.Memory)
				}
			}
			if most := max(m.node.total/memoryPart, before); above > most {
				rt.Fatalf("%d MiB above what is owed, want %d at most", above>>20, most>>20)
			}
		}
	})
}

// A container with more than half of its memory in use is sampled often while it works.
func TestFillingContainersAreSampledOften(t *testing.T) {
	c := &container{cgroup: &handle{kernelContainer: &kernelContainer{Reading: cgroup.Reading{Limit: userLimits}}}}
	c.ranked.Store(true)
	c.leftOut.Store(true)
	for used, want := range map[int64]time.Duration{256 * mib: leftOutEvery, 257 * mib: sampleEvery} {
		c.cgroup.(*handle).Memory = used
		if err := c.sampleWhole(func() time.Time { return epoch }); err != nil {
			t.Fatal(err)
		}
		if got := c.every(epoch); got != want {
			t.Errorf("with %d MiB of 512 in use it is sampled every %v, want %v", used/mib, got, want)
		}
	}
}

// What pods use and have above what they are owed is counted, and no more is lent than is left.
func TestLendableMemoryBesideNeeds(t *testing.T) {
	m := newMemoryRig(t)
	m.run("a/p", true)
	m.kernel["a/p"].Limit.MemoryBytes = 1024 * mib
	m.needs(map[string]int64{"a/p": 600})
	if used, pins := m.borrowedMemory(); used != 88*mib || pins != 512*mib {
		t.Errorf("used %d MiB and pinned %d, want 88 and 512", used/mib, pins/mib)
	}
	if m.aboveMemory != 512*mib {
		t.Errorf("%d MiB above, want 512", m.aboveMemory/mib)
	}
	if got, want := lendableMemory(88*mib, m.node, 512*mib), m.node.total/memoryPart-512*mib; got != want {
		t.Errorf("lendable %d, want %d", got, want)
	}
	if got := lendableMemory(0, nodeMemory{total: math.MaxInt64 / 2, available: 0}, 0); got != 0 {
		t.Errorf("lendable %d of a node that has none", got)
	}
}

// When the source is owners again, CPU is lent as soon as the ceilings are out of force.
func TestOwnersAreTheSourceAgain(t *testing.T) {
	k := newTestRanked(t)
	k.add("default/d", "donor", 500)
	k.add("default/b", "borrower", 500)
	k.openPool()
	volume := api.Resources{CPUMilli: 200, MemoryBytes: 100 * mib}
	k.begin("1", "default/d", volume, api.Resources{})
	k.begin("2", "default/b", api.Resources{}, volume)
	k.kernel["donor"].Limit.CPUMilli, k.kernel["borrower"].Limit.CPUMilli = 2000, 2000
	k.exchange()
	for range 50 {
		k.kernel["donor"].CPU += 20 * time.Millisecond // two cores
		k.pass(10 * time.Millisecond)
	}
	for _, pod := range []string{"default/d", "default/b"} {
		k.inform(pod, func(i *podInfo) { i.node = false })
	}
	k.rest(2 * time.Second)
	k.want("donor", 2000) // the kubelet has yet to lower it
	k.want("borrower", 2000)
	if debts := k.debts(); len(debts) > 0 {
		t.Errorf("the journal names %v", debts)
	}
	k.kernel["donor"].Limit.CPUMilli, k.kernel["borrower"].Limit.CPUMilli = 500, 500
	k.rest(2 * time.Second)
	k.end("1")
	k.end("2")
	k.begin("3", "default/d", volume, api.Resources{})
	k.begin("4", "default/b", api.Resources{}, volume)
	k.exchange()
	k.want("donor", 300)
	k.want("borrower", 700)
	if n := k.counted("libra.agent.safeguards", ""); n != 0 {
		t.Errorf("the safeguard fired %d times for what was used up to a ceiling", n)
	}
}
