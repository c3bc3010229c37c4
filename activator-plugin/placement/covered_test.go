package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// knownNode returns the profile of a node that lends this much forever, and has that much of its ten cores in use.
func knownNode(name string, lends, inUse int64, begun int) pool.Profile {
	steps := func(milli int64) []pool.Step { return []pool.Step{{Volume: api.Resources{CPUMilli: milli}}} }
	return pool.Profile{
		Node: name, Heard: epoch, Open: true, Begun: begun,
		Capacity: api.Resources{CPUMilli: 10_000}, Idle: api.Resources{CPUMilli: 10_000 - inUse},
		Unused:  steps(lends),
		Domains: map[string]pool.DomainProfile{revID.Namespace: {Lends: steps(lends)}},
	}
}

// seenBy gives candidates their Views of the picture.
func (f *fixture) seenBy(candidates []Candidate, source api.Source) []Candidate {
	for i, c := range candidates {
		c.Source = source
		candidates[i] = NewCandidate(c.Target, f.View(c.Node, revID.Namespace))
		candidates[i].InFlight = c.InFlight
	}
	return candidates
}

// Coverage takes a node that covers as much as any, within closeEnough. Levels fall or rise, some of the volume is
// debited, and some nodes are not known.
func TestCoverageTakesTheMostCovered(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t)
		source := rapid.SampledFrom([]api.Source{api.SourceOwners, api.SourceNode}).Draw(rt, "source")
		var nodes []string
		var profiles []pool.Profile
		for i := range rapid.IntRange(1, mostLooks).Draw(rt, "nodes") {
			nodes = append(nodes, fmt.Sprint("node-", i))
			if rapid.IntRange(0, 4).Draw(rt, "known") > 0 {
				profiles = append(profiles, pool.Profile{
					Node: nodes[i], Heard: epoch, Capacity: api.Resources{CPUMilli: 1000}, Unused: drawSteps(rt, 5, "unused"),
					Domains: map[string]pool.DomainProfile{revID.Namespace: {Lends: drawSteps(rt, 5, "lends")}},
				})
			}
		}
		candidates := f.seenBy(on(0, nodes...), source)
		for i := range candidates {
			candidates[i].InFlight = rapid.IntRange(0, 2).Draw(rt, "requests")
		}
		f.hear(t, profiles...)
		f.clock.Step(time.Duration(rapid.SampledFrom([]int{0, 50, 250, 500, 2000}).Draw(rt, "passed ms")) * time.Millisecond)
		q := &Query{Revision: revID, Now: f.clock.Now(), Rand: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))}
		of := func(i int) float64 {
			if covered, known := candidates[i].View.Coverage(source, q.Demand, q.Now); known {
				return covered
			}
			return -1
		}
		for range rapid.IntRange(1, 4).Draw(rt, "choices") {
			q.Demand = Demand{
				Want: drawVolume(rt, "want"), Duration: time.Duration(rapid.IntRange(1, 900).Draw(rt, "ms")) * time.Millisecond,
				OwnCPUMilli: rapid.SampledFrom([]int64{0, 100}).Draw(rt, "own"),
			}
			most, before := -1.0, make([]float64, len(candidates))
			for i := range candidates {
				before[i] = of(i)
				most = max(most, before[i])
			}
			i := Coverage(q, candidates)
			switch {
			case most < 0:
				if i != homeUnlessFuller(q, candidates) {
					rt.Fatal("nothing is known of any node, and it is not what it is for all other requests")
				}
			case before[i] < 0 || before[i] < most-closeEnough*(1-q.Demand.anyway())-1e-9:
				rt.Fatalf("it takes %v of %v", before[i], before)
			}
			candidates[i].View.Debit(source, q.Demand, q.Now)
		}
	})
}

// Memory weighs little beside CPU. Where it is all that is wanted, a node with 15 % less of it is not as good.
func TestCoverageTellsNodesApartByMemoryAlone(t *testing.T) {
	const mib = 1 << 20
	f := newFixture(t)
	candidates := f.seenBy(on(0, "most", "less"), api.SourceOwners)
	candidates[0].InFlight = 1 // the other one is emptier
	lends := map[string]int64{"most": 1000 * mib, "less": 850 * mib}
	for seed := range uint64(20) {
		var profiles []pool.Profile
		for node, memory := range lends {
			p := knownNode(node, 0, 0, 0)
			p.Domains[revID.Namespace] = pool.DomainProfile{Lends: []pool.Step{{Volume: api.Resources{MemoryBytes: memory}}}}
			profiles = append(profiles, p)
		}
		f.hear(t, profiles...) // so nothing is debited
		q := &Query{Revision: revID, Now: f.clock.Now(), Rand: rand.New(rand.NewPCG(seed, 0))}
		q.Demand = Demand{Want: api.Resources{MemoryBytes: 1000 * mib}, Duration: 100 * time.Millisecond}
		if i := Coverage(q, candidates); candidates[i].Node != "most" {
			t.Fatalf("with the seed %d it takes the node that lends less", seed)
		}
	}
}

// If the bounds tell nodes apart badly, Coverage looks at a bounded number of nodes, and takes the best that it has
// seen. If they tell them apart well, it takes the best of all.
func TestCoverageLooksAtABoundedNumberOfNodes(t *testing.T) {
	const count = 8 * mostLooks
	for name, later := range map[string]int64{"the bounds tell them apart": 0, "all may cover everything": 1000} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			var nodes []string
			var profiles []pool.Profile
			for i := range count {
				node := knownNode(fmt.Sprint("node-", i), 0, 0, 0)
				at := func(passed time.Duration, milli int64) pool.Step {
					return pool.Step{From: epoch.Add(passed), Volume: api.Resources{CPUMilli: milli}}
				}
				node.Domains[revID.Namespace] = pool.DomainProfile{Lends: []pool.Step{at(0, 2*int64(i)), at(time.Second, later), at(2*time.Second, 0)}}
				nodes, profiles = append(nodes, node.Node), append(profiles, node)
			}
			f.hear(t, profiles...)
			candidates := f.seenBy(on(0, nodes...), api.SourceOwners)
			q := &Query{Revision: revID, Demand: wants(1000), Now: f.clock.Now()}
			q.Demand.Duration = 900 * time.Millisecond
			got, _ := candidates[Coverage(q, candidates)].View.Coverage(api.SourceOwners, q.Demand, q.Now)
			seen, best := 0, 0.0
			for _, p := range q.prospects {
				if p.known == exact {
					seen, best = seen+1, max(best, p.covers)
				}
			}
			if seen > mostLooks+mostDraws || got < best-closeEnough {
				t.Errorf("it takes %v after it looked at %d nodes, of which the best covers %v", got, seen, best)
			}
			if all := 1 - cpuWeight + cpuWeight*2*(count-1)/1000; later == 0 && got < all-closeEnough {
				t.Errorf("it takes %v, and the best of all covers %v", got, all)
			}
		})
	}
}

// Coverage looks at each node once, whatever the number of its pods, and does not count nodes about which nothing is
// known by now.
func TestCoverageFindsTheOneNodeThatLends(t *testing.T) {
	for name, tt := range map[string]struct {
		pods  int
		stale bool
	}{"among nodes with many pods": {pods: 2 * mostLooks}, "among nodes of a Redis that hangs": {pods: 1, stale: true}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			// What this node lends has a bound above that of the one that lends more over the time of the request.
			steep := func(node string) pool.Profile {
				p := knownNode(node, 0, 0, 0)
				p.Domains[revID.Namespace] = pool.DomainProfile{Lends: []pool.Step{
					{From: epoch, Volume: api.Resources{CPUMilli: 100}},
					{From: epoch.Add(time.Second), Volume: api.Resources{CPUMilli: 1000}},
					{From: epoch.Add(2 * time.Second)},
				}}
				return p
			}
			var nodes []string
			var profiles []pool.Profile
			for i := range 2 * mostLooks {
				nodes = append(nodes, fmt.Sprint("steep-", i))
				if tt.stale || i == 0 {
					profiles = append(profiles, steep(nodes[i]))
				}
			}
			if !tt.stale {
				nodes = slices.Repeat([]string{nodes[0]}, tt.pods)
			}
			nodes = append(nodes, "lends")
			f.hear(t, profiles...)
			if tt.stale {
				f.clock.Step(pool.LeaseTTL)
			}
			lends := knownNode("lends", 500, 0, 0)
			lends.Heard = f.clock.Now()
			f.hear(t, lends)
			candidates := f.seenBy(on(0, nodes...), api.SourceOwners)
			q := &Query{Revision: revID, Demand: wants(1000), Now: f.clock.Now()}
			q.Demand.Duration = 900 * time.Millisecond
			if got := candidates[Coverage(q, candidates)].Node; got != "lends" {
				t.Errorf("it takes %s", got)
			}
		})
	}
}

// Chance decides among the nodes that count as equal, however many others there are and wherever they are.
func TestCoverageSpreadsOverFewOfMany(t *testing.T) {
	f := newFixture(t)
	var nodes []string
	var profiles []pool.Profile
	for i := range 200 {
		nodes = append(nodes, fmt.Sprint("node-", i))
		profiles = append(profiles, knownNode(nodes[i], int64(i), 0, 0))
	}
	f.hear(t, profiles...)
	candidates := f.seenBy(on(0, nodes...), api.SourceOwners)
	q, got := &Query{Revision: revID, Now: f.clock.Now()}, map[int]int{}
	for range 2000 {
		q.Demand = wants(1000)
		got[Coverage(q, candidates)]++
	}
	// Those within closeEnough of the best lend at least 199 - 0.02*1000.
	for i := 180; i < 200; i++ {
		if got[i] < 30 {
			t.Errorf("node %d is taken %d times of 2000, want about 100: %v", i, got[i], got)
		}
	}
}

// Where several activators choose often, one takes another's node only for what that is likely to win. One that
// hardly chooses takes the most covered.
func TestCoveragePrefersOwnNodes(t *testing.T) {
	for name, tt := range map[string]struct {
		often            int
		own, others      int64
		activators, want int
	}{
		"alone":                        {often: 100, own: 500, others: 600, activators: 1, want: 1},
		"nobody chooses":               {often: 0, own: 500, others: 600, activators: 4, want: 1},
		"all choose often":             {often: 100, own: 500, others: 600, activators: 4, want: 0},
		"the other covers all":         {often: 100, own: 500, others: 1000, activators: 4, want: 0},
		"the other covers far more":    {often: 100, own: 300, others: 1000, activators: 4, want: 1},
		"its own lends nothing":        {often: 100, own: 0, others: 100, activators: 4, want: 1},
		"more activators choose":       {often: 4, own: 500, others: 800, activators: 10, want: 0},
		"as often, but one other only": {often: 4, own: 500, others: 800, activators: 2, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for range 100 {
				f.choosing.now.Store(int64(tt.often))
				f.choosing.refreshed()
			}
			f.hear(t, knownNode("a", tt.own, 0, 0), knownNode("b", tt.others, 0, 0))
			candidates := f.seenBy(on(0, "a", "b"), api.SourceOwners)
			candidates[0].own = true
			if tt.activators == 1 {
				candidates[1].own = true
			}
			q := &Query{Revision: revID, Demand: wants(1000), Now: f.clock.Now(), activators: tt.activators}
			if got := Coverage(q, candidates); got != tt.want {
				t.Errorf("taken node %d, want %d", got, tt.want)
			}
		})
	}
}

// Each node belongs to one activator, and the activators have about equally many.
func TestNodesAreShared(t *testing.T) {
	const count, nodes = 4, 1000
	var of [count]int
	for i := range nodes {
		owners := 0
		for index := range count {
			if (activators{index, count}).owns(xxhash.Sum64String(fmt.Sprint("node-", i))) {
				owners++
				of[index]++
			}
		}
		if owners != 1 {
			t.Fatalf("node %d is that of %d activators", i, owners)
		}
	}
	for index, n := range of {
		if n < nodes/count/2 {
			t.Errorf("activator %d has %d of %d nodes", index, n, nodes)
		}
	}
}

// On a node, Coverage takes the pod with the fewest requests.
func TestCoverageTakesTheEmptiestOfANode(t *testing.T) {
	for _, lends := range []int64{400, 2000} {
		f := newFixture(t)
		f.hear(t, knownNode("a", lends, 0, 0), knownNode("b", 100, 0, 0))
		candidates := f.seenBy(on(0, "a", "a", "b", "a"), api.SourceOwners)
		for i, inFlight := range []int{3, 2, 0, 1} {
			candidates[i].InFlight = inFlight
		}
		if i := Coverage(&Query{Revision: revID, Demand: wants(1000), Now: f.clock.Now()}, candidates); i != 3 {
			t.Errorf("of a node that lends %dm it takes pod %d, want the third of a's", lends, i)
		}
	}
}

// Among nodes that count as equal, Coverage never takes the one with the most requests, whether they cover
// everything or not. It never takes one that covers less.
func TestCoverageTakesTheEmptierOfEquals(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t)
		q := &Query{
			Revision: revID, Demand: wants(1000), Now: f.clock.Now(), slots: NewSlots(nil, nil),
			Rand: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0)),
		}
		lends := rapid.SampledFrom([]int64{0, 400, 1000, 5000}).Draw(rt, "lends")
		var nodes []string
		var profiles []pool.Profile
		most, busiest := 0, ""
		for i := range rapid.IntRange(2, 8).Draw(rt, "nodes") {
			node := fmt.Sprint("equal-", i)
			requests := 2*rapid.IntRange(0, 5).Draw(rt, "requests") + 1
			if i == 0 || requests > most {
				most, busiest = requests, node
			} else if requests == most {
				requests--
			}
			q.slots.onNodes.add(NodeIDOf(node), requests)
			nodes, profiles = append(nodes, node), append(profiles, knownNode(node, lends, 0, 0))
		}
		if lends > 0 {
			nodes, profiles = append(nodes, "lends-less"), append(profiles, knownNode("lends-less", min(lends, 1000)-100, 0, 0))
		}
		candidates := f.seenBy(on(0, nodes...), api.SourceOwners)
		f.hear(t, profiles...)
		if got := candidates[Coverage(q, candidates)].Node; got == busiest || got == "lends-less" {
			rt.Fatalf("it takes %s; %s has the most requests", got, busiest)
		}
	})
}

// Among nodes that count as equal, chance decides, whether they cover everything or not.
func TestCoverageSpreadsOverEquals(t *testing.T) {
	for _, want := range []int64{1000, 2000} {
		testSpread(t, want)
	}
}

func testSpread(t *testing.T, want int64) {
	f := newFixture(t)
	f.hear(t, knownNode("a", 1000, 0, 0), knownNode("b", 1010, 0, 0), knownNode("c", 900, 0, 0))
	candidates := f.seenBy(on(0, "a", "b", "c"), api.SourceOwners)
	got := map[int]int{}
	for range 1000 {
		got[Coverage(&Query{Revision: revID, Demand: wants(want), Now: f.clock.Now()}, candidates)]++
	}
	if got[2] != 0 || got[0] < 250 || got[1] < 250 {
		t.Errorf("taken %v, want each of the first two often", got)
	}
}

// A debit counts until the picture has heard of it, so several requests go to several nodes.
func TestCoverageFillsNodes(t *testing.T) {
	f := newFixture(t)
	s := NewSlots(f.Picture, nil)
	for i, node := range []string{"a", "b", "c"} {
		s.SetPod(revID, readyPod(i, node))
	}
	f.hear(t, knownNode("a", 1000, 0, 0), knownNode("b", 1000, 0, 0), knownNode("c", 1000, 0, 0))
	got := map[string]int{}
	for range 3 {
		got[s.Of(revID, 10).Take(dest(0), Ask{Policy: Coverage, Demand: wants(1000), Now: f.clock.Now()}).Node]++
	}
	if len(got) != 3 {
		t.Errorf("taken %v, want each once", got)
	}
}

func TestDefaultKeepsOthersAtHome(t *testing.T) {
	f := newFixture(t)
	candidates := on(0, "a", "b", "c")
	home := Hash(&Query{Revision: revID}, candidates)
	for i, node := range []string{"a", "b", "c"} {
		lends := int64(1000)
		if i == home {
			lends = 0
		}
		f.hear(t, knownNode(node, lends, 0, 0))
	}
	f.seenBy(candidates, api.SourceOwners)
	for range 20 {
		if got := Default(&Query{Revision: revID, Now: f.clock.Now()}, candidates); got != home {
			t.Errorf("one that wants nothing goes to %d, want %d", got, home)
		}
		if got := Default(&Query{Revision: revID, Now: f.clock.Now(), Demand: wants(100)}, candidates); got == home {
			t.Errorf("one that wants something goes to %d, where there is nothing", got)
		}
	}
}

func TestPoliciesByLoad(t *testing.T) {
	for name, tc := range map[string]struct {
		policy Policy
		inUse  map[string]int64
		want   string
	}{
		"least pressure":                      {LeastPressure, map[string]int64{"a": 5000, "b": 100, "c": 9000}, "b"},
		"least pressure, one not known":       {LeastPressure, map[string]int64{"a": 5000, "c": 9000}, "a"},
		"minimum worker set, all loaded":      {MinimumWorkerSet, map[string]int64{"a": 10_000, "b": 9_999, "c": 10_000}, "b"},
		"minimum worker set, two loaded":      {MinimumWorkerSet, map[string]int64{"a": 10_000, "b": 10_000, "c": 7000}, "c"},
		"minimum worker set, one not known":   {MinimumWorkerSet, map[string]int64{"a": 10_000, "b": 10_000}, "c"},
		"minimum worker set, none is loaded":  {MinimumWorkerSet, map[string]int64{"a": 0, "b": 5000, "c": 7000}, atHome("a", "b", "c")},
		"minimum worker set, most are loaded": {MinimumWorkerSet, map[string]int64{atHome("a", "b", "c"): 7000}, atHome("a", "b", "c")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for node, inUse := range tc.inUse {
				f.hear(t, knownNode(node, 0, inUse, 0))
			}
			candidates := f.seenBy(on(0, "a", "b", "c"), api.SourceOwners)
			if got := candidates[tc.policy(&Query{Revision: revID, Now: f.clock.Now()}, candidates)].Node; got != tc.want {
				t.Errorf("it takes %s, want %s", got, tc.want)
			}
		})
	}
}

// atHome returns the node on which Hash puts the revision.
func atHome(nodes ...string) string { return nodes[Hash(&Query{Revision: revID}, on(0, nodes...))] }

// If several pods have equally many requests, the one on the node with the fewest requests of all is taken.
func TestJoinShortestQueueOfNodes(t *testing.T) {
	f := newFixture(t)
	f.hear(t, knownNode("a", 0, 0, 7), knownNode("b", 0, 0, 3), knownNode("c", 0, 0, 1))
	candidates := f.seenBy(on(1, "a", "b", "c"), api.SourceOwners)
	candidates[2].InFlight = 2
	if got := JoinShortestQueue(&Query{Now: f.clock.Now()}, candidates); got != 1 {
		t.Errorf("it takes %s, want b", candidates[got].Node)
	}
}
