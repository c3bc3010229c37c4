package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

var revID = types.NamespacedName{Namespace: "ns", Name: "rev-00001"}

var now = time.Unix(1_800_000_000, 0)

// on returns one pod on each node, each with that many requests.
func on(inFlight int, nodes ...string) []Candidate {
	var all []Candidate
	for i, node := range nodes {
		c := NewCandidate(&Target{Dest: fmt.Sprintf("10.0.0.%d:8012", i+1), Node: node}, nil)
		c.InFlight = inFlight
		all = append(all, c)
	}
	return all
}

func drawCandidates(t *rapid.T) []Candidate {
	n := rapid.IntRange(1, 20).Draw(t, "pods")
	var all []Candidate
	for i := range n {
		c := NewCandidate(&Target{Dest: fmt.Sprintf("10.0.0.%d:8012", i+1), Node: fmt.Sprintf("node-%d", rapid.IntRange(0, 5).Draw(t, "node"))}, nil)
		c.InFlight = rapid.IntRange(0, 3).Draw(t, "in flight")
		all = append(all, c)
	}
	return all
}

func drawDemand(t *rapid.T) Demand {
	return Demand{
		Want:     api.Resources{CPUMilli: rapid.Int64Range(0, 4000).Draw(t, "cpu"), MemoryBytes: rapid.Int64Range(0, 1<<30).Draw(t, "memory")},
		Duration: time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond,
	}
}

// Each policy names one of the candidates and changes none, and stock always names Knative's.
func TestPoliciesNameACandidate(t *testing.T) {
	policies := AllNamed()
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t)
		was := slices.Clone(candidates)
		q := &Query{Revision: revID, Demand: drawDemand(t), Now: now, Rand: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))}
		for _, name := range api.Placements {
			i := policies[name](q, candidates)
			if i < 0 || i >= len(candidates) || !slices.Equal(was, candidates) {
				t.Fatalf("%s names %d of %d, or changes them", name, i, len(candidates))
			}
			if name == api.PlacementStock && i != 0 {
				t.Fatalf("stock names %d", i)
			}
		}
	})
}

// Whatever the order of the candidates, a revision goes to the same node, and there to the pod with the fewest
// requests. A node that goes affects only the revisions on it.
func TestHashSticks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t)
		rev := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("rev-%d", rapid.IntRange(0, 1000).Draw(t, "revision"))}
		of := func(all []Candidate) Candidate { return all[Hash(&Query{Revision: rev}, all)] }
		home := of(candidates)
		for _, c := range candidates {
			if c.Node == home.Node && c.InFlight < home.InFlight {
				t.Fatalf("%s has %d requests, and %s on the same node only %d", home.Dest, home.InFlight, c.Dest, c.InFlight)
			}
		}
		shuffled := rapid.Permutation(candidates).Draw(t, "order")
		if got := of(shuffled); got.Node != home.Node || got.InFlight != home.InFlight {
			t.Fatalf("%v in one order, %v in another", home, got)
		}
		gone := rapid.SampledFrom(candidates).Draw(t, "gone").Node
		left := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool { return c.Node == gone })
		if len(left) > 0 && gone != home.Node && of(left).Node != home.Node {
			t.Fatalf("it moves from %s to %s because %s is gone", home.Node, of(left).Node, gone)
		}
	})
}

// By default, pods fill one after the other as far as Knative fills them, and share requests as Knative has them do
// above that. The first goes to the home either way.
func TestDefaultSpreadsAsKnativeDoes(t *testing.T) {
	home := atHome("a", "b", "c")
	few := slotsOf("a", "b", "c").Of(revID, concentratedUpTo)
	for i := range concentratedUpTo {
		if c := few.Take(dest(i), Ask{Policy: Default, Now: now}); c.Node != home {
			t.Errorf("one of few goes to %s, want %s", c.Node, home)
		}
	}
	const pods, concurrency, requests = 3, 80, 20
	r := slotsOf("a", "b", "c").Of(revID, concurrency)
	got := map[string]int{}
	for i := range requests {
		c := r.Take(dest(i%pods), Ask{Policy: Default, Now: now})
		if i == 0 && c.Node != home {
			t.Errorf("the first goes to %s, want %s", c.Node, home)
		}
		got[c.Node]++
	}
	for node, n := range got {
		if n > (requests+pods-1)/pods+1 {
			t.Errorf("%d of %d requests are on %s: %v", n, requests, node, got)
		}
	}
}

// Revisions do not all go to the same node.
func TestHashSpreadsRevisions(t *testing.T) {
	nodes := []string{"node-0", "node-1", "node-2", "node-3", "node-4"}
	got := map[string]int{}
	const revisions = 5000
	for i := range revisions {
		rev := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("rev-%05d", i)}
		got[nodes[Hash(&Query{Revision: rev}, on(0, nodes...))]]++
	}
	for _, node := range nodes {
		if share := float64(got[node]) / revisions; share < 0.17 || share > 0.23 {
			t.Errorf("%.2f of the revisions are at home on %s, want a fifth", share, node)
		}
	}
}

// Each pod has its turn, whatever the order of the candidates, even when it comes or goes.
func TestRoundRobinTakesTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t)
		policy := NewRoundRobin()
		q := &Query{Revision: revID}
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			got := map[string]int{}
			for range candidates {
				candidates = rapid.Permutation(candidates).Draw(t, "order")
				got[candidates[policy(q, candidates)].Dest]++
				// Another revision takes turns of its own.
				policy(&Query{Revision: types.NamespacedName{Name: "other"}}, candidates)
			}
			if len(got) != len(candidates) {
				t.Fatalf("%d of %d had their turn: %v", len(got), len(candidates), got)
			}
		}
	})
}

func TestJoinShortestQueue(t *testing.T) {
	candidates := on(2, "a", "b", "c", "d")
	candidates[1].InFlight, candidates[3].InFlight = 1, 1
	got := map[int]int{}
	for range 1000 {
		got[JoinShortestQueue(&Query{}, candidates)]++
	}
	if len(got) != 2 || got[1] < 400 || got[3] < 400 {
		t.Errorf("taken %v, want 1 and 3 alike", got)
	}
}

func TestRandomTakesAll(t *testing.T) {
	got := map[int]int{}
	for range 30_000 {
		got[Random(&Query{}, on(0, "a", "b", "c"))]++
	}
	if len(got) != 3 || got[0] < 9000 || got[1] < 9000 || got[2] < 9000 {
		t.Errorf("taken %v, want each a third", got)
	}
}

// The same seed makes the same choices.
func TestChanceCanBeSeeded(t *testing.T) {
	of := func(seed uint64) (all []int) {
		q := &Query{Rand: rand.New(rand.NewPCG(seed, 0))}
		for range 20 {
			all = append(all, Random(q, on(0, "a", "b", "c")), JoinShortestQueue(q, on(0, "a", "b", "c")))
		}
		return all
	}
	if !slices.Equal(of(1), of(1)) || slices.Equal(of(1), of(2)) {
		t.Error("choices are not those of the seed")
	}
}

// If nothing is known about any node, each of these falls back to a policy that needs no picture.
func TestPoliciesWithoutAPicture(t *testing.T) {
	wants := Demand{Want: api.Resources{CPUMilli: 1000}, Duration: time.Second}
	rapid.Check(t, func(t *rapid.T) {
		candidates := drawCandidates(t)
		q := &Query{Revision: revID, Demand: wants, Now: now}
		home := Hash(q, candidates)
		for _, name := range []api.Placement{api.PlacementDefault, api.PlacementCoverage, api.PlacementMinimumWorkerSet} {
			if got := Named(name)(q, candidates); got != home {
				t.Fatalf("%s names %d, want %d as hash does", name, got, home)
			}
		}
		// Where Knative spreads requests, its pick stays if it is one of the candidates and has fewer.
		q.spreadTo = rapid.SampledFrom(candidates).Draw(t, "Knative's pick").Dest
		if q.spreadTo == candidates[0].Dest && candidates[0].InFlight < candidates[home].InFlight {
			home = 0
		}
		for _, name := range []api.Placement{api.PlacementDefault, api.PlacementCoverage} {
			if got := Named(name)(q, candidates); got != home {
				t.Fatalf("%s names %d where Knative picks %s, want %d", name, got, q.spreadTo, home)
			}
		}
		q.spreadTo = ""
		least := slices.MinFunc(candidates, func(a, b Candidate) int { return a.InFlight - b.InFlight })
		if got := candidates[LeastPressure(q, candidates)]; got.InFlight != least.InFlight {
			t.Fatalf("least pressure names one with %d requests, want %d", got.InFlight, least.InFlight)
		}
	})
}

func TestPoliciesAllocateNothing(t *testing.T) {
	candidates := on(0, slices.Repeat([]string{"a", "b", "c", "d", "e"}, 20)...)
	for _, name := range api.Placements {
		policy := Named(name)
		q := &Query{Revision: revID, Demand: Demand{Want: api.Resources{CPUMilli: 1000}, Duration: time.Second}, Now: now}
		policy(q, candidates) // makes room for what the policy remembers
		if n := testing.AllocsPerRun(100, func() { policy(q, candidates) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
