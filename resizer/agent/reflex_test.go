package agent

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/cgroup"
)

func TestLoanAndItsEnd(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	if diff := cmp.Diff([]string{"borrower", "donor"}, g.debts()); diff != "" {
		t.Errorf("debts on disk (-want +got):\n%s", diff)
	}
	g.end("1")
	g.exchange()
	g.want("donor", 500)
	g.want("borrower", 500)
	if n := g.counted("libra.agent.restores", causeEnded); n != 1 {
		t.Errorf("%d restores because loans ended, want 1", n)
	}
	g.pass(staleWindow - 20*time.Millisecond)
	if len(g.debts()) != 2 {
		t.Errorf("debts on disk: %v, though the kubelet may still write what was", g.debts())
	}
	g.pass(20 * time.Millisecond)
	if len(g.debts()) != 0 {
		t.Errorf("debts on disk: %v, though all is whole", g.debts())
	}
	writes := g.kernel["donor"].writes
	g.pass(2 * time.Second)
	if g.kernel["donor"].writes != writes {
		t.Error("written to at rest")
	}
}

// The sampler takes a container that rests to have its earlier limit, unless it is told otherwise.
func TestSamplerIsToldOfALimitThatWasSet(t *testing.T) {
	g := newTestRig(t)
	sampled := &container{id: "borrower", cgroup: &handle{kernelContainer: g.run("default/b", "borrower", userLimits)}}
	g.sampled.put("default/b", sampled)
	sampled.lookAgain.Store(false)
	g.lend()
	if !sampled.lookAgain.Load() || sampled.repaid.Load() {
		t.Error("the sampler is not to look at a limit that was raised, or to take it for one that was not")
	}
	g.link.asks.put("default/b", 0) // while Redis is away
	g.end("1")
	g.exchange()
	if !sampled.repaid.Load() {
		t.Error("the sampler is not told that what was borrowed went back")
	}
	if asks := g.link.asks.take(); len(asks) > 0 {
		t.Errorf("asked for is still %v, which was of the loan that has ended", asks)
	}
}

func TestSafeguardRestoresAtOnce(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	for range 3 {
		g.pass(10 * time.Millisecond)
		g.kernel["donor"].CPU += 8 * time.Millisecond // 24 ms of 30
	}
	g.want("donor", 300)
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	g.want("borrower", 700) // until the pool says which loans that ends
	if n := g.counted("libra.agent.safeguards", ""); n != 1 {
		t.Errorf("%d safeguards, want 1", n)
	}
	g.exchange()
	g.want("donor", 500)
	g.want("borrower", 500)
	g.begin("3", "default/b", api.Resources{}, api.Resources{CPUMilli: 200})
	g.exchange()
	g.want("borrower", 500)
	if n := g.counted("libra.agent.restores", causeSafeguard); n != 1 {
		t.Errorf("%d restores by the safeguard, want 1", n)
	}
}

// A restore that fails has restored nothing yet: it is neither measured nor said to be done.
func TestSafeguardThatCannotWrite(t *testing.T) {
	for name, fail := range map[string]func(*kernelContainer){
		"a write fails": func(k *kernelContainer) { k.broken = true },
		"it has ended":  func(k *kernelContainer) { k.endsAtWrite = true },
	} {
		t.Run(name, func(t *testing.T) {
			g := newTestRig(t)
			g.lend()
			said := 0
			g.log = funcr.New(func(_, args string) { said += strings.Count(args, "the safeguard restored") }, funcr.Options{})
			fail(g.kernel["donor"])
			g.kernel["donor"].ThrottledPeriods++
			g.pass(10 * time.Millisecond)
			if n := g.counted("libra.agent.safeguards", ""); n != 1 || len(g.link.strikes.take()) != 1 {
				t.Errorf("%d safeguards are counted, want one, and the strike", n)
			}
			if n := g.recorded("libra.agent.safeguard.reaction"); n != 0 || said != 0 {
				t.Errorf("%d reactions are measured, and %d restores said; want none", n, said)
			}
		})
	}
}

// lendIdle makes the donor's pod idle, and lets the borrower borrow what it does not need
// meanwhile.
func (g *rig) lendIdle() {
	g.Helper()
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	g.beginIdling("1", "default/d")
	g.begin("2", "default/b", api.Resources{}, api.Resources{CPUMilli: 400})
	g.exchange()
	g.want("borrower", 500)
	g.end("1")
	g.exchange()
	g.want("donor", 100)
	g.want("borrower", 900)
}

func TestIdleDonor(t *testing.T) {
	g := newTestRig(t)
	g.lendIdle()
	g.beginIdling("3", "default/d")
	g.exchange()
	g.want("donor", 500)
	g.want("borrower", 500)
	g.end("3")
	g.exchange()
	g.want("donor", 100)
	g.want("borrower", 900)
}

func TestSafeguardOfAnIdleDonor(t *testing.T) {
	g := newTestRig(t)
	g.lendIdle()
	g.kernel["donor"].CPU += 9 * time.Millisecond
	g.pass(10 * time.Millisecond)
	g.kernel["donor"].CPU += time.Millisecond
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	g.exchange()
	g.want("borrower", 500)
	g.beginIdling("3", "default/d")
	g.end("3")
	g.exchange()
	g.want("donor", 500) // its function is suspended
}

func TestAnInvocationOfAnIdleDonorIsNotHeldAgainstItsFunction(t *testing.T) {
	g := newTestRig(t)
	g.lendIdle()
	g.begin("3", "default/d", api.Resources{CPUMilli: 200}, api.Resources{})
	g.kernel["donor"].ThrottledPeriods++ // by an invocation of whose Begin the agent hears later
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	g.exchange()
	g.want("donor", 300)
	g.want("borrower", 700)
	if s, err := g.pool.Read(g.ctx, node); err != nil || len(s.Suspended) > 0 {
		t.Errorf("suspended are %v, %v, want none", s.Suspended, err)
	}
}

func TestSafeguardWithoutRedis(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.kernel["donor"].ThrottledPeriods++
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	g.want("borrower", 700)
	g.pass(revokeTime + 10*time.Millisecond)
	g.want("borrower", 500)
	if n := g.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

func TestDeadMansSwitch(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.pass(pool.LeaseTTL)
	g.want("donor", 300)
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	g.want("borrower", 500)
	if n := g.counted("libra.agent.restores", causeRedisLost); n != 1 {
		t.Errorf("%d restores because Redis was lost, want 1", n)
	}
}

func TestStaleValuesAreRewritten(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.kernel["donor"].Limit = userLimits
	g.pass(10 * time.Millisecond)
	g.want("donor", 300)
	g.end("1")
	g.exchange()
	g.kernel["donor"].Limit.CPUMilli = 300 // the record of a loan that has ended
	g.pass(10 * time.Millisecond)
	g.want("donor", 500)
	if n := g.counted("libra.agent.rewrites", ""); n != 2 {
		t.Errorf("%d rewrites, want 2", n)
	}
}

// A limit that another puts in force is put right when it is seen. It counts all the same: the
// alerts are on what was in force, not on what was meant to be.
func TestWhatAnotherPutsInForceCounts(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.kernel["donor"].Limit.CPUMilli = 100
	g.pass(10 * time.Millisecond)
	if got := g.countedSeconds("libra.agent.below.owed"); got != 0.01 {
		t.Errorf("below for %v s, want 0.01", got)
	}
	g.kernel["donor"].Limit.CPUMilli = 400 // more than is due
	g.pass(10 * time.Millisecond)
	if got := g.countedSeconds("libra.agent.below.owed"); got != 0.01 {
		t.Errorf("below for %v s, want no more", got)
	}
	for range 5 {
		g.kernel["borrower"].Limit.CPUMilli = 900
		g.pass(10 * time.Millisecond)
		g.want("borrower", 700)
	}
	if n := g.counted("libra.agent.invariant.violations", ruleConservation); n != 0 {
		t.Errorf("%d violations within %v", n, exceedTime)
	}
	for range 5 {
		g.kernel["borrower"].Limit.CPUMilli = 900
		g.pass(10 * time.Millisecond)
	}
	if n := g.counted("libra.agent.invariant.violations", ruleConservation); n != 1 {
		t.Errorf("%d violations in one go, want 1", n)
	}
}

// The alert looks for an increase, and must not end before the violation does.
func TestViolationThatGoesOnIsCountedAgain(t *testing.T) {
	var x exceeding
	now := time.Unix(0, 0)
	counted := 0
	for range 10*int(3*time.Minute/time.Second) + 1 {
		if x.count(true, now, exceedTime) {
			counted++
		}
		now = now.Add(100 * time.Millisecond)
	}
	if counted != 3 {
		t.Errorf("counted %d times in three minutes, want 3", counted)
	}
	if x.count(false, now, exceedTime); x != (exceeding{}) {
		t.Errorf("%+v is left of a violation that is over", x)
	}
}

func TestForeignLimitsAreLeftAlone(t *testing.T) {
	g := newTestRig(t)
	others := api.Resources{CPUMilli: 900, MemoryBytes: 512 * mib}
	g.run("default/d", "donor", others)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	g.begin("1", "default/d", api.Resources{CPUMilli: 200}, api.Resources{})
	g.begin("2", "default/b", api.Resources{}, api.Resources{CPUMilli: 200})
	g.exchange()
	g.want("donor", 900)
	g.want("borrower", 500)
	if len(g.debts()) != 0 || g.kernel["donor"].writes != 0 {
		t.Errorf("another manager's container was changed; debts: %v", g.debts())
	}
	hb := g.told
	if _, ok := hb.Pods["default/d"]; ok || !hb.Whole {
		t.Errorf("heartbeat %+v, want one without the pod", hb)
	}
}

// A manager that changes only memory wants its pod left alone, too. The log says so once, and does not blame
// another manager for a limit of Libra's own, as there is one after the source was the node.
func TestWhoSetALimitIsSaid(t *testing.T) {
	ceiling := api.Resources{CPUMilli: 1800, MemoryBytes: userLimits.MemoryBytes}
	for name, tc := range map[string]struct {
		limits  api.Resources // in the spec
		foreign bool
		told    int
	}{
		"Libra":          {ceiling, false, 0},
		"another":        {ceiling, true, 1},
		"another memory": {api.Resources{CPUMilli: 500, MemoryBytes: 2 * userLimits.MemoryBytes}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTestRanked(t)
			told := 0
			k.log = funcr.New(func(_, args string) { told += strings.Count(args, "leaving a pod alone") }, funcr.Options{})
			k.run("default/d", "donor", tc.limits)
			k.run("default/b", "borrower", userLimits)
			for range 2 {
				k.inform("default/d", func(i *podInfo) { i.foreign, i.recorded = tc.foreign, !tc.foreign })
			}
			k.openPool()
			k.begin("1", "default/d", api.Resources{CPUMilli: 200}, api.Resources{})
			k.begin("2", "default/b", api.Resources{}, api.Resources{CPUMilli: 200})
			k.exchange()
			if k.kernel["donor"].writes != 0 || k.named()["default/d"] {
				t.Errorf("%d writes; the pool is told that it takes part: %v", k.kernel["donor"].writes, k.named()["default/d"])
			}
			if told != tc.told {
				t.Errorf("the log says %d times that another manager set its limits, want %d", told, tc.told)
			}
		})
	}
}

// The Revision says what a pod is owed, whatever somebody writes to Redis.
func TestAllocationsInRedisAreNotBelieved(t *testing.T) {
	for name, claimed := range map[string]api.Resources{
		"more": {CPUMilli: 4000, MemoryBytes: 4096 * mib},
		"less": {CPUMilli: 250, MemoryBytes: 300 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			g := newTestRig(t)
			g.run("default/d", "donor", userLimits)
			g.run("default/b", "borrower", userLimits)
			g.openPool()
			for id, i := range map[string]pool.Invocation{
				"1": {Pod: "default/d", Surplus: api.Resources{CPUMilli: 200}}, "2": {Pod: "default/b", Want: api.Resources{CPUMilli: 200}},
			} {
				i.ID, i.Function, i.Domain, i.Owner, i.Duration, i.Allocation = id, "default/f-00001", "default", "activator", time.Minute, claimed
				if _, err := g.pool.Begin(g.ctx, node, i); err != nil {
					t.Fatal(err)
				}
			}
			g.exchange()
			g.want("donor", 300)
			g.want("borrower", 700)
			g.end("1")
			g.end("2")
			g.exchange()
			g.want("donor", 500)
			g.want("borrower", 500)
		})
	}
}

func TestAnotherContainer(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.kernel["donor"].gone = true
	g.pods.set("default/d", podInfo{function: "default/f-00001"})
	g.follow(g.ctx)
	g.round(g.ctx)
	g.pass(100 * time.Millisecond)
	g.run("default/d", "second", api.Resources{CPUMilli: 300, MemoryBytes: 512 * mib}) // by the record
	g.want("second", 500)
	g.want("borrower", 500)
	g.round(g.ctx)
	g.exchange()
	if hb := g.named(); hb["default/d"] || !hb["default/b"] {
		t.Errorf("the pool was told of %v, want the pod left out while the other's loans stand", hb)
	}
	g.want("second", 500) // its loans were the other's
	if diff := cmp.Diff([]string{"borrower", "second"}, g.debts()); diff != "" {
		t.Errorf("debts on disk (-want +got):\n%s", diff)
	}
	g.end("1")
	g.exchange()
	g.exchange()
	if hb := g.named(); !hb["default/d"] {
		t.Errorf("the pool was told of %v, want the pod to take part again", hb)
	}
	g.begin("3", "default/d", api.Resources{CPUMilli: 200}, api.Resources{})
	g.exchange()
	g.want("second", 300)
}

func TestPodsThatLeave(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.remove("default/d") // opted out: its container goes on
	g.want("donor", 500)
	g.kernel["borrower"].gone = true
	g.round(g.ctx)
	g.remove("default/b")
	if diff := cmp.Diff([]string{"donor"}, g.debts()); diff != "" {
		t.Errorf("debts on disk (-want +got):\n%s", diff)
	}
	g.pass(staleWindow + 10*time.Millisecond)
	if len(g.debts()) != 0 || len(g.entries) != 0 {
		t.Errorf("debts %v and %d entries are left", g.debts(), len(g.entries))
	}
}

func TestANewAgentGivesBackFirst(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.start()
	g.want("donor", 500)
	g.want("borrower", 500)
	if n := g.counted("libra.agent.restores", causeStart); n != 1 {
		t.Errorf("%d restores at the start, want 1", n)
	}
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.exchange()
	g.want("donor", 300) // the loan goes on
	g.want("borrower", 700)
	g.kernel["donor"].gone = true
	g.start()
	g.pass(unclaimedTime)
	if len(g.debts()) != 0 || len(g.entries) != 0 {
		t.Errorf("debts %v and %d entries are left of pods that nobody knows", g.debts(), len(g.entries))
	}
}

func TestWithoutAJournalNothingIsLowered(t *testing.T) {
	g := newTestRig(t)
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	if err := os.RemoveAll(g.dir); err != nil {
		t.Fatal(err)
	}
	g.begin("1", "default/d", api.Resources{CPUMilli: 200}, api.Resources{})
	g.begin("2", "default/b", api.Resources{}, api.Resources{CPUMilli: 200})
	g.exchange()
	g.want("donor", 500)
	g.want("borrower", 500)
}

func TestHeartbeat(t *testing.T) {
	g := newTestRig(t)
	g.run("default/d", "donor", userLimits)
	g.pods.set("default/o", podInfo{container: "other", observed: "its queue-proxy has limits",
		cgroup: &handle{kernelContainer: &kernelContainer{}}})
	g.follow(g.ctx)
	g.openPool()
	g.clock.Step(beatEvery)
	g.round(g.ctx)
	hb := <-g.link.beats
	if diff := cmp.Diff(map[string]int64{"default/d": pinned(0)}, hb.Pods); diff != "" || !hb.Whole || hb.Epoch != g.state.Epoch {
		t.Errorf("heartbeat %+v; pods (-want +got):\n%s", hb, diff)
	}
}

// The heartbeat that opens a pool tells it which pods hold nothing from before.
func TestPodsThatRestWhenThePoolOpens(t *testing.T) {
	g := newTestRig(t)
	for _, name := range []string{"busy", "resting"} {
		kernel := g.run("default/"+name, name, userLimits)
		g.sampled.put("default/"+name, &container{id: name, cgroup: &handle{kernelContainer: kernel}})
	}
	for range 3 {
		g.clock.Step(restTime)
		g.kernel["busy"].CPU += restTime / 2
		for _, name := range []string{"busy", "resting"} {
			if err := g.sampled.get("default/" + name).sampleWhole(g.clock.Now); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.exchange() // reads the epoch
	g.pass(0)
	if hb := <-g.link.beats; !hb.Whole || !slices.Equal(hb.Rested, []string{"default/resting"}) || !hb.RestedAt.Equal(g.clock.Now().Add(-restTime)) {
		t.Errorf("the heartbeat that opens the pool is %+v, want the pod that rests in it, at rest for %s", hb, restTime)
	} else {
		g.link.beats <- hb
	}
	// It rested before the epoch, too. What began just before that has not shown yet.
	for _, want := range [][]string{{"default/busy", "default/resting"}, {"default/busy"}} {
		g.exchange()
		slices.Sort(g.state.Unseen)
		if diff := cmp.Diff(want, g.state.Unseen); diff != "" {
			t.Errorf("pods that may hold something from before (-want +got):\n%s", diff)
		}
		g.clock.Step(restTime)
		g.kernel["busy"].CPU += restTime / 2
		for _, name := range []string{"busy", "resting"} {
			if err := g.sampled.get("default/" + name).sampleWhole(g.clock.Now); err != nil {
				t.Fatal(err)
			}
		}
		g.reflex.beat(g.ctx, false)
	}
}

// Whatever an activator that is gone had in a pod is over once the pod uses no CPU any more, and
// the pod lends again.
func TestLapsedIsOverWhenItsPodRests(t *testing.T) {
	g := newTestRig(t)
	donor := g.run("default/d", "donor", userLimits)
	sampled := &container{id: "donor", cgroup: &handle{kernelContainer: donor}}
	g.sampled.put("default/d", sampled)
	g.openPool()
	g.begin("1", "default/d", api.Resources{CPUMilli: 200}, api.Resources{})
	pass := func(d time.Duration, cpu time.Duration) {
		t.Helper()
		for range int(d / (100 * time.Millisecond)) {
			g.pass(100 * time.Millisecond)
			donor.CPU += cpu
			if err := sampled.sampleWhole(g.clock.Now); err != nil {
				t.Fatal(err)
			}
		}
		g.exchange()
	}
	lends := func(id string) bool {
		_, err := g.pool.Begin(g.ctx, node, pool.Invocation{
			ID: id, Function: "default/f-00001", Pod: "default/d", Domain: "default", Owner: "another activator",
			Duration: time.Minute, Allocation: userLimits, Surplus: api.Resources{CPUMilli: 200},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer g.end(id)
		s, err := g.pool.Read(g.ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		return s.Available.CPUMilli > 0
	}
	for range 7 {
		pass(time.Second, 20*time.Millisecond)
	}
	if lends("2") {
		t.Error("the pod lends while what has lapsed in it computes")
	}
	for range 2 {
		pass(time.Second, 0)
	}
	if !lends("3") {
		t.Error("the pod does not lend, though it uses nothing")
	}
}

// A heartbeat tells of the last sample. A request that has begun since is not over.
func TestWhatComputesSinceTheLastSampleIsNotOver(t *testing.T) {
	g := newTestRig(t)
	donor := g.run("default/d", "donor", userLimits)
	sampled := &container{id: "donor", cgroup: &handle{kernelContainer: donor}}
	g.sampled.put("default/d", sampled)
	g.openPool()
	unseen := func() bool {
		s, err := g.pool.Read(g.ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(s.Unseen, "default/d")
	}
	beats := func(sample bool) {
		t.Helper()
		if sample {
			if err := sampled.sampleWhole(g.clock.Now); err != nil {
				t.Fatal(err)
			}
		}
		g.exchange()
		g.reflex.beat(g.ctx, false)
		g.exchange()
	}
	for range 3 {
		g.clock.Step(restTime)
		beats(true)
	}
	g.clock.Step(restTime)
	if _, err := g.pool.End(g.ctx, node, pool.Ending{ID: "unknown", ComputesIn: "default/d"}); err != nil {
		t.Fatal(err)
	}
	if beats(false); !unseen() {
		t.Error("what computes was over with a sample from before it began")
	}
	if beats(true); !unseen() {
		t.Error("what computes was over with a sample at its beginning")
	}
	g.clock.Step(restTime)
	if beats(true); unseen() {
		t.Error("what computes is not over, though its pod has used nothing since")
	}
}

// A pool that was lost is closed until all that the agent changed is whole.
func TestNewEpoch(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.kernel["donor"].broken = true
	g.learn(news{state: pool.State{Epoch: "another"}, asked: g.clock.Now()})
	g.round(g.ctx)
	if hb := <-g.link.beats; hb.Whole || hb.Epoch != "another" {
		t.Errorf("heartbeat %+v while a donor is lowered, want one that is not whole", hb)
	}
	g.kernel["donor"].broken = false
	g.pass(writeRetryMax)
	if hb := <-g.link.beats; !hb.Whole {
		t.Errorf("heartbeat %+v, want one that is whole", hb)
	}
	g.want("donor", 500)
}

// A limit that another has raised comes down in the round in which its donor could not be
// lowered.
func TestWhatNobodyPaysForComesDownAtOnce(t *testing.T) {
	g := newTestRig(t)
	donor := g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	volume := api.Resources{CPUMilli: 200}
	g.begin("1", "default/d", volume, api.Resources{})
	g.begin("2", "default/b", api.Resources{}, volume)
	g.exchange()
	donor.broken = true
	donor.Limit.CPUMilli = userLimits.CPUMilli
	g.round(g.ctx)
	g.want("borrower", 500)
}

// A restore does not wait for a decrease that failed again and again.
func TestRestoresDoNotBackOff(t *testing.T) {
	g := newTestRig(t)
	donor := g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.openPool()
	volume := api.Resources{CPUMilli: 200}
	g.begin("1", "default/d", volume, api.Resources{})
	g.begin("2", "default/b", api.Resources{}, volume)
	donor.broken = true
	g.exchange()
	g.pass(700 * time.Millisecond) // the waits add up to 630, and 640 is next
	donor.broken = false
	donor.Limit.CPUMilli = 200 // by another
	g.pass(10 * time.Millisecond)
	g.want("donor", 300)

	donor.broken = true
	donor.Limit.CPUMilli = 200
	g.pass(2 * writeRetryMax)
	donor.broken = false
	g.pass(writeRetryMin)
	g.want("donor", 300)
}

// The limit that is read of a container of an earlier agent may be half of a write.
func TestANewAgentWritesWhatItReads(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.kernel["donor"].Limit = userLimits
	g.kernel["donor"].broken = true
	g.start()
	g.run("default/d", "donor", userLimits)
	g.run("default/b", "borrower", userLimits)
	g.exchange()
	if g.get("default/d").whole {
		t.Error("taken for whole unwritten")
	}
	g.kernel["donor"].broken = false
	writes := g.kernel["donor"].writes
	g.get("default/d").replaced = true // so that no loan is made of it
	g.pass(100 * time.Millisecond)
	if got := g.kernel["donor"].writes - writes; got != 1 || !g.get("default/d").whole {
		t.Errorf("%d writes, want one, and the container whole", got)
	}
}

// A container that the journal names and nobody finds keeps the pool closed.
func TestUnopenedContainers(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	failure := errors.New("too many open files")
	for _, tc := range []struct {
		err  error
		left int
	}{{failure, 2}, {cgroup.ErrNotFound, 0}} { // what has ended keeps the pool closed no longer
		g.opening, g.opens = tc.err, 0
		g.start()
		g.exchange()
		g.pass(beatEvery)
		g.exchange()
		if g.told.Whole != (tc.left == 0) {
			t.Errorf("%v: told that all is whole: %v", tc.err, g.told.Whole)
		}
		g.pass(unclaimedTime + beatEvery)
		if len(g.entries) != tc.left {
			t.Errorf("%v: %d entries are left, want %d", tc.err, len(g.entries), tc.left)
		}
		if tc.left == 0 {
			if g.opens != 2 {
				t.Errorf("two containers that have ended were looked for %d times, want once each", g.opens)
			}
			continue
		}
		g.kernel["donor"].Limit.CPUMilli = 300
		g.opening = nil
		g.pass(beatEvery)
		g.want("donor", 500)
	}
}

// Another manager that keeps other limits in a pod's spec gets its way.
func TestAnotherManagerOfTheSpec(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.end("1")
	g.end("2")
	g.exchange()
	others := api.Resources{CPUMilli: 900, MemoryBytes: 512 * mib}
	g.run("default/d", "donor", others)
	g.rest(specPatience - time.Second)
	if diff := cmp.Diff([]string{"donor"}, g.debts()); diff != "" {
		t.Errorf("debts on disk (-want +got):\n%s", diff)
	}
	g.rest(2 * time.Second)
	if len(g.debts()) != 0 {
		t.Errorf("debts on disk: %v, want none", g.debts())
	}
	g.kernel["donor"].Limit = others
	g.rest(2 * time.Second)
	g.want("donor", 900)
	if g.named()["default/d"] {
		t.Error("the pod still takes part")
	}
}

// A record that nobody takes back does not become what the container is owed: the agent does not
// let go of the container, and the pod's next container gets its own allocation.
func TestRecordThatNobodyTakesBack(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.end("1")
	g.end("2")
	g.exchange()
	record := api.Resources{CPUMilli: 300, MemoryBytes: 512 * mib}
	spec := func(container string, limits api.Resources, recorded bool) {
		info := podInfo{function: "default/f-00001", container: container, limits: limits, recorded: recorded}
		info.cgroup = &handle{kernelContainer: g.kernel[container]}
		g.pods.set("default/d", info)
		g.follow(g.ctx)
		g.round(g.ctx)
	}
	spec("donor", record, true)
	g.rest(specPatience + 2*time.Second)
	if diff := cmp.Diff([]string{"donor"}, g.debts()); diff != "" {
		t.Errorf("debts on disk (-want +got):\n%s", diff)
	}
	g.kernel["another"] = &kernelContainer{Reading: cgroup.Reading{Memory: 50 * mib, Limit: record}}
	spec("another", record, true)
	g.want("another", 500)
	spec("another", userLimits, true)
	g.rest(specPatience + 2*time.Second)
	if len(g.debts()) != 0 {
		t.Errorf("debts on disk: %v, want none of a pod whose spec is right again", g.debts())
	}
}

func TestStop(t *testing.T) {
	g := newTestRig(t)
	g.lend()
	g.stop(t.Context())
	g.want("donor", 500)
	g.want("borrower", 500)
	if len(g.debts()) != 0 {
		t.Errorf("debts %v are left", g.debts())
	}
	s, err := g.pool.Read(t.Context(), node)
	if err != nil || s.Open || s.Pods["default/d"] != (pool.Balance{}) || !s.Pods["default/b"].Borrowed.IsZero() {
		t.Errorf("the pool is %+v (%v), want it closed and empty of loans", s, err)
	}
}

// A container is read anew as soon as somebody has changed it, is about to, or may have.
func TestWhatIsReadAnew(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(g *rig, e *entry)
		anew   bool
	}{
		"nothing is done to it": {func(*rig, *entry) {}, false},
		"it was never read":     {func(_ *rig, e *entry) { e.read = false }, true},
		"it was not seen whole": {func(_ *rig, e *entry) { e.whole = false }, true},
		"the journal names it":  {func(_ *rig, e *entry) { e.debtor = "c" }, true},
		"it is to lend": {func(g *rig, _ *entry) {
			g.state.Pods = map[string]pool.Balance{"default/d": {Lent: api.Resources{CPUMilli: 1}}}
		}, true},
		"it is to borrow": {func(g *rig, _ *entry) {
			g.state.Pods = map[string]pool.Balance{"default/d": {Borrowed: api.Resources{CPUMilli: 1}}}
		}, true},
		"the agent stops":            {func(g *rig, _ *entry) { g.stopping = true }, true},
		"it is another container":    {func(_ *rig, e *entry) { e.info.container = "other" }, true},
		"it was sampled a while ago": {func(g *rig, _ *entry) { g.clock.Step(longestGap + 1) }, true},
	} {
		g := newRig(t, t.Context(), t.TempDir())
		kernel := g.run("default/d", "c", userLimits)
		sampled := &container{id: "c", cgroup: &handle{kernelContainer: kernel}}
		g.sampled.put("default/d", sampled)
		if err := sampled.sampleWhole(g.clock.Now); err != nil {
			t.Fatal(err)
		}
		kernel.Limit.CPUMilli++
		e := g.get("default/d")
		g.lost = false
		tc.change(g, e)
		reading, _, err := g.readContainer(e)
		if anew := reading.Limit == kernel.Limit; err != nil || anew != tc.anew {
			t.Errorf("%s: read anew: %v (%v), want %v", name, anew, err, tc.anew)
		}
	}
}
