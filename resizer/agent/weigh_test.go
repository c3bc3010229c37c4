package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/cgroup"
)

// ranked is a rig of pods whose source is the node. A test sets their flights.
type ranked struct {
	*rig
	flying map[string][]ranking // by pod
	epoch  string
	begins int
}

// ranking is a flight by when it began.
type ranking struct {
	at      time.Time
	cpuTime time.Duration
	n       int // among flights that are alike
}

func (f ranking) id() string { return fmt.Sprint(f.at.UnixNano(), f.cpuTime, f.n) }

func newRanked(g *rig) *ranked { return &ranked{rig: g, flying: map[string][]ranking{}, epoch: "e"} }

func newTestRanked(t *testing.T) *ranked { return newRanked(newTestRig(t)) }

// add makes a pod run whose CPU comes from the node.
func (k *ranked) add(pod, container string, allocationMilli int64) *kernelPod {
	k.run(pod, container, userLimits)
	k.inform(pod, func(info *podInfo) { info.node, info.allocation.CPUMilli = true, allocationMilli })
	return k.cgroups[pod]
}

// inform changes what the cluster tells of a pod.
func (k *ranked) inform(pod string, change func(*podInfo)) {
	info := k.pods.byPod[pod]
	info.cgroup = nil
	change(&info)
	k.pods.set(pod, info)
	k.follow(k.ctx)
	k.round(k.ctx)
}

func (k *ranked) fly(pod string, cpuTime time.Duration) {
	k.begins++
	k.flying[pod] = append(k.flying[pod], ranking{k.clock.Now(), cpuTime, k.begins})
}

// newRankedPair returns a rig with two pods that are owed half a core each.
func newRankedPair(t *testing.T) *ranked {
	t.Helper()
	k := newTestRanked(t)
	k.add("default/p0", "c0", 500)
	k.add("default/p1", "c1", 500)
	return k
}

func (k *ranked) land(pod string, i int) {
	k.flying[pod] = slices.Delete(slices.Clone(k.flying[pod]), i, i+1)
}

// tell makes the agent learn a state.
func (k *ranked) tell() {
	now := k.clock.Now()
	state := pool.State{Epoch: k.epoch, InFlight: map[string][]pool.Flight{}}
	for pod, flights := range k.flying {
		for _, f := range flights {
			state.InFlight[pod] = append(state.InFlight[pod], pool.Flight{ID: f.id(), Age: now.Sub(f.at), CPUTime: f.cpuTime})
		}
	}
	k.learn(news{state: state, asked: now})
	k.round(k.ctx)
}

// hearBegun makes the agent hear of the last flight that began in a pod.
func (k *ranked) hearBegun(pod string) {
	last := k.flying[pod][len(k.flying[pod])-1]
	at := k.clock.Now()
	k.hear(heard{at: at, begun: []pool.Begun{{ID: last.id(), Pod: pod, CPUTime: last.cpuTime, At: at}}})
	k.round(k.ctx)
}

// hearEnded makes the agent hear that a flight has ended.
func (k *ranked) hearEnded(pod string, f ranking) {
	k.hear(heard{at: k.clock.Now(), ended: []api.Ended{{ID: f.id(), Pod: pod}}})
	k.round(k.ctx)
}

// burn makes a container use CPU over a time, and the agent sample it.
func (k *ranked) burn(container string, used, over time.Duration) {
	const step = 10 * time.Millisecond
	for range int(over / step) {
		k.kernel[container].CPU += used / (over / step)
		k.clock.Step(step)
		k.sample()
		k.round(k.ctx)
	}
}

// sample does what the agent's sampling does.
func (k *ranked) sample() {
	for pod, info := range k.pods.byPod {
		c := k.sampled.get(pod)
		if c == nil || c.id != info.container {
			made, ok := k.kernel[info.container]
			if !ok {
				continue
			}
			c = &container{id: info.container, cgroup: &handle{kernelContainer: made}}
			k.sampled.put(pod, c)
		}
		if woke, _ := c.sample(k.clock.Now); woke {
			signal(k.awake)
		}
	}
	select {
	case <-k.awake:
		k.reweigh = k.reweigh || k.wakes()
	default:
	}
}

func (k *ranked) wantWeights(what string, want ...int64) {
	k.Helper()
	var got []int64
	for i := range want {
		got = append(got, k.cgroups[fmt.Sprintf("default/p%d", i)].weight)
	}
	if !slices.Equal(got, want) {
		k.Fatalf("%s: weights %v, want %v", what, got, want)
	}
}

func (k *ranked) weightsInJournal() int {
	k.Helper()
	files, err := filepath.Glob(filepath.Join(k.dir, "*"+weightSuffix))
	if err != nil {
		k.Fatalf("%v", err)
	}
	return len(files)
}

func TestWeightsOfFlights(t *testing.T) {
	k := newTestRanked(t)
	for i := range 3 {
		k.add(fmt.Sprintf("default/p%d", i), fmt.Sprint("c", i), 500)
	}
	k.fly("default/p0", ms(1000))
	k.tell()
	k.wantWeights("alone", 100, 100, 100)
	if n := k.weightsInJournal(); n != 0 || k.cgroups["default/p0"].writes != 0 {
		t.Errorf("%d weights are in the journal, though none was written", n)
	}
	k.fly("default/p1", ms(10))
	k.tell()
	k.wantWeights("short beside long", 52, 148, 100)
	if n := k.weightsInJournal(); n != 2 {
		t.Errorf("%d weights are in the journal, want those of two pods", n)
	}
	k.land("default/p1", 0)
	k.tell()
	k.wantWeights("after the short one", 100, 100, 100)

	writes := k.cgroups["default/p0"].writes
	k.land("default/p0", 0)
	k.tell()
	k.wantWeights("at rest", 100, 100, 100)
	k.pass(staleWindow + 2*beatEvery)
	if n := k.weightsInJournal(); n != 0 || k.cgroups["default/p0"].writes != writes {
		t.Errorf("%d weights are in the journal at rest", n)
	}
	if !k.weighAt.IsZero() {
		t.Error("weights are computed at rest")
	}
	if n := k.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

// Where the settings are strict, a pod falls behind others only once it has had more than it is owed.
func TestStrictWeights(t *testing.T) {
	k := newRankedPair(t)
	strict := func(is bool) {
		for _, pod := range []string{"default/p1", "default/p0"} {
			k.inform(pod, func(info *podInfo) { info.strict = is })
		}
	}
	strict(true)
	k.fly("default/p0", ms(1000))
	k.fly("default/p1", ms(10))
	k.tell()
	k.wantWeights("both owed", 100, 100)
	strict(false)
	k.pass(weighEvery)
	k.wantWeights("edited", 52, 148)
	strict(true)
	k.pass(weighEvery)
	k.wantWeights("edited back", 100, 100)
	k.burn("c0", ms(300), ms(200))
	k.wantWeights("the long one has had more", 13, 187)
	if n := k.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

// An agent that hears that requests begin and end need not read the state for it, and an earlier
// state takes nothing of that back.
func TestWeightsOfWhatIsHeard(t *testing.T) {
	k := newRankedPair(t)
	k.tell()
	before := news{state: k.state, asked: k.clock.Now()}
	k.pass(ms(5))
	k.fly("default/p0", ms(1000))
	k.hearBegun("default/p0")
	k.fly("default/p1", ms(10))
	k.hearBegun("default/p1")
	k.hearBegun("default/p1") // once is enough
	k.wantWeights("short beside long", 52, 148)
	k.learn(before)
	k.round(k.ctx)
	k.wantWeights("told how it was", 52, 148)

	short := k.flying["default/p1"][0]
	k.tell()
	then := news{state: k.state, asked: k.clock.Now()}
	k.pass(ms(5))
	k.land("default/p1", 0)
	k.hear(heard{at: k.clock.Now(), ended: []api.Ended{{ID: short.id(), Pod: "default/p1"}}})
	if k.reweigh {
		t.Error("an End has weights written at once, which nobody waits for")
	}
	k.pass(weighEvery)
	k.wantWeights("after the short one", 100, 100)
	k.learn(then)
	k.round(k.ctx)
	k.wantWeights("told that it is there", 100, 100)
	k.tell()
	k.wantWeights("told how it is", 100, 100)

	k.hear(heard{at: k.clock.Now(), begun: []pool.Begun{{ID: "1", Pod: "default/unknown"}}, ended: []api.Ended{{ID: "2", Pod: "default/unknown"}}})
	k.round(k.ctx)
	k.wantWeights("of a pod that is not known", 100, 100)

	k.tell()
	k.pass(pool.LeaseTTL + beatEvery)
	k.fly("default/p1", ms(1000))
	k.hearBegun("default/p1")
	k.hearEnded("default/p0", k.flying["default/p0"][0])
	heard := func() [2]int {
		return [2]int{len(k.get("default/p1").weighing.flights.known), len(k.get("default/p0").weighing.flights.ended)}
	}
	if got := heard(); got != [2]int{0, 0} {
		t.Errorf("what was heard is kept, though no state comes that would take it back: %d begun, %d ended", got[0], got[1])
	}
	k.tell()
	if got := heard(); got != [2]int{1, 0} {
		t.Errorf("after a state, %d begun, %d ended, want 1 and 0", got[0], got[1])
	}
}

// A pod's use makes it borrow, and lets its request outlive its prediction.
func TestWeightsFollowUse(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p0", ms(110))
	k.fly("default/p1", ms(2000))
	k.tell()
	k.wantWeights("both owed", 50+80, 50+20) // levels 2 and 3: 4 to 1
	k.burn("c0", ms(90), ms(100))
	k.wantWeights("done soon", 50+98, 52) // level 0, owed: 90 of 100
	k.burn("c0", ms(110), ms(100))
	// It has used more than was predicted, and 200 of the 150 ms that it is due: 12.5 and a fifth of
	// the 137.5 left.
	k.wantWeights("past its prediction", 40, 160)
	k.burn("c1", ms(0), ms(300))
	k.wantWeights("owed again", 100, 100)
}

// Nobody knows what a request used that was in flight before the agent came. Its pod is not owed
// for that time.
func TestWeightsOfWhatBeganBefore(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p0", ms(600_000))
	k.clock.Step(5 * time.Minute)
	k.tell()
	owed := func() bool { return k.get("default/p0").weighing.contender.owed() }
	if !owed() {
		t.Error("it is not owed though it was not seen to use anything")
	}
	k.burn("c0", 2*time.Second, time.Second)
	if owed() {
		t.Error("after a second on two cores it is owed half a core")
	}
	k.burn("c0", 0, 4*time.Second)
	if !owed() {
		t.Error("it is not owed after it has used less than its own")
	}
}

// A container that uses CPU without a request that is seen counts as in flight until it rests.
func TestWeightsOfWhatIsNotSeen(t *testing.T) {
	k := newRankedPair(t)
	k.burn("c0", 0, ms(500))
	k.fly("default/p1", ms(2000))
	k.tell()
	k.wantWeights("one rests", 100, 100)
	k.burn("c0", ms(20), ms(20))
	k.wantWeights("it wakes", 148, 52)
	k.burn("c0", ms(180), ms(200))
	if got := k.cgroups["default/p0"].weight; got >= 148 || got < 50 {
		t.Errorf("a weight of %d after 200 ms in which nothing was seen of it, want less than at first", got)
	}
	k.burn("c0", 0, ms(220))
	k.wantWeights("it rests", 100, 100)
}

// If the agent is told of a pod's requests, those that it is not told of are quick, however much
// they use together without a rest.
func TestWeightsOfWhatIsNotTold(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p1", ms(600_000))
	k.fly("default/p0", ms(20))
	k.tell()
	k.land("default/p0", 0)
	k.tell()
	k.burn("c0", ms(100), ms(300))
	k.wantWeights("soon after one that was told", 148, 52)
	k.burn("c0", ms(300), ms(1000))
	k.wantWeights("a second later", 148, 52)
	// Nobody tells of requests any more, so this may be one request: of the last level, and owed.
	k.burn("c0", toldFor/4, toldFor)
	k.wantWeights("long after", 100, 100)
}

// Use until the end of a request that was seen does not count against the pod.
func TestWeightsAfterAFlight(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p0", ms(100))
	k.fly("default/p1", ms(2000))
	k.tell()
	k.burn("c0", ms(500), ms(500))
	k.land("default/p0", 0)
	k.tell()
	k.wantWeights("it has ended", 100, 100)
	k.fly("default/p0", ms(20))
	k.tell()
	if w := &k.get("default/p0").weighing; len(w.flights.known) != 1 || w.flights.known[0].used != 0 {
		t.Errorf("the flights of the pod are %+v, want one that has used nothing", w.flights)
	}
}

// A pool that begins anew may be on another machine, with another clock.
func TestBeginsByTheClockOfTheLastPool(t *testing.T) {
	k := newRankedPair(t)
	before := time.Hour // between the clocks of the two pools
	k.learn(news{state: pool.State{Epoch: "first", Now: k.clock.Now().Add(-before)}, asked: k.clock.Now()})
	k.clock.Step(ms(10))
	k.learn(news{state: pool.State{Epoch: "second", Now: k.clock.Now()}, asked: k.clock.Now()})
	k.clock.Step(ms(10))
	if begun := k.poolClock.own(k.clock.Now().Add(-ms(5)), k.clock.Now()); k.clock.Since(begun) != ms(5) {
		t.Errorf("what began 5 ms ago is said to have begun %v ago", k.clock.Since(begun))
	}
}

// The use of a pod in flight is read once for all that need it, and not because something began in
// another pod.
func TestUseIsReadOnce(t *testing.T) {
	k := newRankedPair(t)
	k.fly("default/p0", ms(1000))
	k.tell()
	k.pass(weighEvery)
	reads := k.kernel["c0"].cpuReads
	for range 4 {
		k.clock.Step(ms(5))
		k.fly("default/p1", ms(1000))
		k.hearBegun("default/p1")
	}
	if got := k.kernel["c0"].cpuReads - reads; got != 0 {
		t.Errorf("%d readings for what began in another pod within 20 ms, want none", got)
	}

	k.clock.Step(attributeEvery)
	e := k.get("default/p0")
	e.info.ceilingMilli = 2000
	k.kernel["c0"].CPU += ms(40)
	reads = k.kernel["c0"].cpuReads
	k.clamps = &clamps{metrics: k.reflex.metrics}
	all := k.capped()
	i := slices.IndexFunc(all, func(c capped) bool { return c.pod == "default/p0" })
	if i < 0 {
		t.Fatal("the container is not one that may use more than its allocation")
	}
	known := &clampedContainer{capped: all[i]}
	use, ok := k.clamps.look(k.ctx, known, k.clock.Now())
	k.clamps = nil
	k.weighAt = k.clock.Now()
	k.round(k.ctx)
	if got := k.kernel["c0"].cpuReads - reads; got != 1 {
		t.Errorf("%d readings for its weight and for the clamp, want one", got)
	}
	if !ok || known.used != k.kernel["c0"].CPU || e.weighing.flights.known[0].used != known.used {
		t.Errorf("the clamp knows of %v (%+v, %t) and the flight of %v, want %v of both", known.used, use, ok, e.weighing.flights.known[0].used, k.kernel["c0"].CPU)
	}
}

func TestSeveralFlightsInAPod(t *testing.T) {
	k := newTestRanked(t)
	k.add("default/p0", "c0", 1000)
	k.fly("default/p0", ms(300))
	k.tell()
	k.burn("c0", ms(60), ms(100))
	k.fly("default/p0", ms(300))
	k.fly("default/p0", 0)
	k.tell()
	k.burn("c0", ms(90), ms(100))
	var used []time.Duration
	for _, f := range k.get("default/p0").weighing.flights.known {
		used = append(used, f.used.Round(time.Millisecond))
	}
	if want := []time.Duration{ms(90), ms(30), ms(30)}; !slices.Equal(used, want) {
		t.Errorf("flights have used %v, want %v", used, want)
	}
	k.land("default/p0", 0)
	k.tell()
	used = nil
	for _, f := range k.get("default/p0").weighing.flights.known {
		used = append(used, f.used.Round(time.Millisecond))
	}
	if want := []time.Duration{ms(30), ms(30)}; !slices.Equal(used, want) {
		t.Errorf("flights have used %v, want %v", used, want)
	}
}

// The weight is the kubelet's again, whatever ends the pod's part.
func TestWeightsAreGivenBack(t *testing.T) {
	tests := map[string]func(*ranked){
		"it opts out": func(k *ranked) { k.remove("default/p0") },
		"the mode is observe": func(k *ranked) {
			k.inform("default/p0", func(i *podInfo) { i.node, i.allocation = false, api.Resources{} })
		},
		"the owners are the source": func(k *ranked) {
			k.inform("default/p0", func(i *podInfo) { *i = podInfo{function: i.function, container: i.container, limits: i.limits} })
		},
		"it is only observed": func(k *ranked) { k.inform("default/p0", func(i *podInfo) { i.observed = "because" }) },
		"its container ends": func(k *ranked) {
			k.kernel["c0"].gone = true
			k.pass(beatEvery)
		},
		"another container runs": func(k *ranked) { k.add("default/p0", "c9", 500) },
		"Redis is lost":          func(k *ranked) { k.pass(pool.LeaseTTL + beatEvery) },
		"the agent stops":        func(k *ranked) { k.reflex.stop(k.ctx) },
		"another agent starts":   func(k *ranked) { k.start() },
		"another starts, after its container": func(k *ranked) {
			k.kernel["c0"].gone = true
			k.start()
		},
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			k := newTestRanked(t)
			k.add("default/p0", "c0", 500)
			k.add("default/p1", "c1", 500)
			k.fly("default/p0", ms(10))
			k.fly("default/p1", ms(2000))
			k.tell()
			k.wantWeights("in flight", 148, 52)
			end(k)
			if got := k.cgroups["default/p0"].weight; name != "another container runs" && got != 100 {
				t.Errorf("a weight of %d, want the kubelet's", got)
			}
			delete(k.flying, "default/p0")
			delete(k.flying, "default/p1")
			k.tell()
			k.pass(staleWindow + 2*beatEvery)
			k.wantWeights("in the end", 100, 100)
			if n := k.weightsInJournal(); n != 0 {
				t.Errorf("%d weights are left in the journal", n)
			}
		})
	}
}

// A weight that cannot be given back now is given back later.
func TestWeightsAreGivenBackLater(t *testing.T) {
	k := newTestRanked(t)
	p := k.add("default/p0", "c0", 500)
	k.add("default/p1", "c1", 500)
	k.fly("default/p0", ms(10))
	k.fly("default/p1", ms(2000))
	k.tell()
	p.broken = true
	k.remove("default/p0")
	k.pass(2 * beatEvery)
	k.start()
	k.pass(2 * beatEvery)
	k.wantWeights("while writes fail", 148, 100)
	if n := k.weightsInJournal(); n != 1 {
		t.Errorf("%d weights are in the journal, want that which is owed", n)
	}
	p.broken = false
	k.pass(2 * beatEvery)
	k.wantWeights("when they do not", 100, 100)
	if n := k.weightsInJournal(); n != 0 {
		t.Errorf("%d weights are in the journal", n)
	}
}

// The agent writes over what the kubelet writes at a resize, but a new weight of the kubelet's is
// the pod's own from then on.
func TestWeightsWrittenByAnother(t *testing.T) {
	k := newTestRanked(t)
	p := k.add("default/p0", "c0", 500)
	k.add("default/p1", "c1", 500)
	k.fly("default/p0", ms(10))
	k.fly("default/p1", ms(2000))
	k.tell()
	p.weight = 100
	k.pass(weighEvery)
	k.wantWeights("after the kubelet's own", 148, 52)
	if n := k.counted("libra.agent.rewrites", "weight"); n != 1 {
		t.Errorf("%d rewrites, want 1", n)
	}
	p.weight = 300
	k.pass(weighEvery)
	k.wantWeights("after new requests", 150+197, 52) // one more is not worth a write
	k.start()
	k.wantWeights("after another agent has started", 300, 100)
	if n := k.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

// Nothing is raised that was not lowered elsewhere. That is a violation only when it makes a pod's
// weight too small.
func TestWeightsThatCannotBeLowered(t *testing.T) {
	k := newTestRanked(t)
	k.add("default/p0", "c0", 500)
	stuck := k.add("default/p1", "c1", 500)
	stuck.broken = true
	k.fly("default/p0", ms(10))
	k.fly("default/p1", ms(2000))
	k.tell()
	k.pass(time.Second)
	k.wantWeights("while it is stuck", 100, 100)
	if n := k.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
	stuck.broken = false
	k.pass(weighEvery)
	k.wantWeights("when it is not", 148, 52)
}

// Loans of CPU end when the node becomes the source, and the limit is then left to others.
func TestLoansBeforeTheNodeIsTheSource(t *testing.T) {
	k := newTestRanked(t)
	k.lend()
	for _, pod := range []string{"default/d", "default/b"} {
		k.inform(pod, func(i *podInfo) { i.node = true })
	}
	k.want("donor", 500)
	k.want("borrower", 500)
	k.kernel["donor"].Limit.CPUMilli = 2000 // the ceiling
	k.kernel["borrower"].Limit.CPUMilli = 2000
	k.rest(staleWindow)
	k.want("donor", 2000)
	k.want("borrower", 2000)
	if e := k.get("default/d"); e.leftAlone() || !e.takesPart() {
		t.Error("a pod at its ceiling is left alone")
	}
	k.end("1")
	k.end("2")
	k.exchange()
	k.want("donor", 2000)
	k.want("borrower", 2000)
	if n := k.counted("libra.agent.invariant.violations", ""); n != 0 {
		t.Errorf("%d violations", n)
	}
}

// weightModel is a node on which anything may happen to weights.
type weightModel struct {
	*ranked
	*rapid.T
	made int
}

func (m *weightModel) Helper()                           { m.T.Helper() }
func (m *weightModel) Fatalf(format string, args ...any) { m.T.Fatalf(format, args...) }

func (m *weightModel) pod(t *rapid.T) string {
	return fmt.Sprintf("default/p%d", rapid.IntRange(0, 3).Draw(t, "pod"))
}

func (m *weightModel) start(pod string) {
	m.made++
	m.add(pod, fmt.Sprint("c", m.made), 500)
}

// In any order, requests come and go, seen and unseen, containers, agents and Redis end, the
// kubelet writes, and the kernel refuses. Weights never add up to more than the kubelet's, every
// pod in flight has at least its floor, and in the end all weights are the kubelet's.
func TestAnythingMayHappenToWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "journal")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir) //nolint:errcheck // it is the test's own
		g := newRig(t, context.Background(), dir)
		defer func() { g.journal.close() }() //nolint:errcheck // the test ends
		m := &weightModel{ranked: newRanked(g), T: t}
		for i := range 4 {
			m.start(fmt.Sprintf("default/p%d", i))
			p := m.cgroups[fmt.Sprintf("default/p%d", i)]
			p.weight = rapid.Int64Range(2, 1000).Draw(t, "weight")
			p.kubelet = p.weight
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin": func(t *rapid.T) {
				pod := m.pod(t)
				m.fly(pod, ms(rapid.Int64Range(0, 500).Draw(t, "predicted")))
				if rapid.Bool().Draw(t, "heard") {
					m.hearBegun(pod)
				}
			},
			"end": func(t *rapid.T) {
				if pod := m.pod(t); len(m.flying[pod]) > 0 {
					i := rapid.IntRange(0, len(m.flying[pod])-1).Draw(t, "flight")
					f := m.flying[pod][i]
					m.land(pod, i)
					if rapid.Bool().Draw(t, "heard") {
						m.hearEnded(pod, f)
					}
				}
			},
			"use": func(t *rapid.T) {
				container := m.pods.byPod[m.pod(t)].container
				m.burn(container, ms(rapid.Int64Range(0, 300).Draw(t, "used")), ms(rapid.Int64Range(1, 20).Draw(t, "tens")*10))
			},
			"tell": func(*rapid.T) { m.tell() },
			"pass": func(t *rapid.T) { m.pass(ms(rapid.SampledFrom([]int64{10, 100, 2000, 6000}).Draw(t, "time"))) },
			"kubelet": func(t *rapid.T) {
				p := m.cgroups[m.pod(t)]
				weight := rapid.OneOf(rapid.Just(p.kubelet), rapid.Int64Range(2, 1000)).Draw(t, "weight")
				if weight == p.weight {
					t.Skip("that it was written cannot be seen")
				}
				p.kubelet, p.weight = weight, weight
				m.tell()
				m.rig.pass(beatEvery + weighEvery) // an agent that dies sooner has not seen it
				m.tell()
			},
			"replace": func(t *rapid.T) {
				pod := m.pod(t)
				m.kernel[m.pods.byPod[pod].container].gone = true
				m.start(pod)
			},
			"restart": func(*rapid.T) {
				infos := m.pods.byPod
				m.rig.start()
				for pod, info := range infos {
					m.add(pod, info.container, 500)
				}
			},
			"break": func(t *rapid.T) {
				p := m.cgroups[m.pod(t)]
				p.broken = !p.broken
			},
			"settings": func(t *rapid.T) {
				node, strict := rapid.Bool().Draw(t, "node"), rapid.Bool().Draw(t, "strict")
				m.inform(m.pod(t), func(i *podInfo) { i.node, i.strict = node, strict })
			},
			"": m.check,
		})
		m.rest()
	})
}

func (m *weightModel) check(t *rapid.T) {
	for _, p := range m.cgroups {
		if p.broken {
			return
		}
	}
	m.rig.pass(2 * weighEvery) // because nothing is broken any more
	var sum, kubelets int64
	for _, p := range m.cgroups {
		sum += p.weight
		kubelets += p.kubelet
	}
	if sum > kubelets {
		t.Fatalf("weights add up to %d, where the kubelet gave %d", sum, kubelets)
	}
	for _, e := range m.entries {
		if w := &e.weighing; w.inFlight && w.belowFloor() {
			t.Fatalf("%s has %d of its %d, owed: %v", e.pod, w.inForce, w.kubelet, w.contender.owed())
		}
	}
}

func (m *weightModel) rest() {
	for _, p := range m.cgroups {
		p.broken = false
	}
	m.flying = map[string][]ranking{}
	m.rig.pass(ms(1)) // what is heard at the moment of a state is newer
	m.tell()
	m.pass(staleWindow + 2*beatEvery)
	for pod, p := range m.cgroups {
		if p.weight != p.kubelet {
			m.T.Fatalf("%s has a weight of %d in the end, where the kubelet gave %d", pod, p.weight, p.kubelet)
		}
	}
	if n := m.weightsInJournal(); n != 0 {
		m.T.Fatalf("%d weights are left in the journal", n)
	}
}

var _ cgroup.PodWeight = (*podHandle)(nil)
