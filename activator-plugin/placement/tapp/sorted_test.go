package tapp

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// spy compares what a program does with what its policy says about the candidates of a real revision.
type spy struct {
	*rapid.T
	*Program
	naive
	random *rand.Rand
	placed int
}

func (s *spy) Place(q *placement.Query, candidates []placement.Candidate) (index, block int) {
	s.naive.candidates = slices.Clone(candidates)
	want := s.answers()
	// If several pods on a node have equally many requests, any may be chosen.
	for w := range maps.Clone(want) {
		for i := range candidates {
			if w.index >= 0 && candidates[i].Node == candidates[w.index].Node && candidates[i].InFlight == candidates[w.index].InFlight {
				want[answer{i, w.block}] = true
			}
		}
	}
	q.Rand = s.random
	index, block = s.Program.Place(q, candidates)
	if got := (answer{index, block}); !want[got] {
		s.Fatalf("got %v, want one of %v, of %+v", got, want, candidates)
	}
	s.placed++
	return index, block
}

// The lists that a revision keeps from one request to the next stay right while requests come and go and programs
// change.
func TestSortedIsWhatThePodsAre(t *testing.T) {
	placed := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "chance"), 0))
		// The policies go by the candidates alone, in the revision's order.
		w.inFlight = nil
		programs := make([]*spy, rapid.IntRange(1, 4).Draw(t, "programs"))
		for i := range programs {
			spec := drawSpec(t)
			if rapid.IntRange(0, 3).Draw(t, "asks for the load") > 0 {
				withoutLoad(spec) // something is kept for such a policy
			}
			p, err := Compile("tag", spec, NewNodes(w.nodes), w.options())
			if err != nil {
				t.Fatal(err)
			}
			programs[i] = &spy{T: t, Program: p, naive: naive{*w, spec}, random: random}
		}
		slots := placement.NewSlots(nil, nil)
		var dests []string
		for i, c := range w.candidates {
			ip := fmt.Sprint("10.0.0.", i)
			dests = append(dests, ip+":8012")
			slots.SetPod(of, placement.Pod{Name: "shop/" + ip, Node: c.Node, IPs: []string{ip}, Ready: true})
		}
		pods := slots.Of(of, rapid.IntRange(1, 3).Draw(t, "concurrency"))
		var running []placement.Choice
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			dest := rapid.SampledFrom(dests).Draw(t, "dest")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				program := rapid.SampledFrom(programs).Draw(t, "program")
				if c := pods.Take(dest, placement.Ask{Program: program, Forwarded: w.forwarded}); c.Outcome != placement.Refused {
					running = append(running, c)
				}
			case 2:
				running = append(running, pods.Take(dest, placement.Ask{}))
			case 3:
				if len(running) > 0 {
					i := rapid.IntRange(0, len(running)-1).Draw(t, "ends")
					running[i].Release()
					running = slices.Delete(running, i, i+1)
				}
			default:
				i := rapid.IntRange(0, len(dests)-1).Draw(t, "pod")
				ip := fmt.Sprint("10.0.0.", i)
				slots.SetPod(of, placement.Pod{Name: "shop/" + ip, Node: w.candidates[i].Node, IPs: []string{ip}, Ready: rapid.Bool().Draw(t, "ready")})
			}
		}
		for _, p := range programs {
			placed += p.placed
		}
	})
	if placed < 100 {
		t.Errorf("%d requests were placed: that does not test much", placed)
	}
}

// withoutLoad makes a policy ask nodes only for their conditions.
func withoutLoad(spec *v1alpha1.PlacementPolicySpec) {
	without := func(i *v1alpha1.Invalidate) {
		if i != nil {
			*i = v1alpha1.Invalidate{Overload: true}
		}
	}
	for i := range spec.Blocks {
		without(spec.Blocks[i].Invalidate)
		for j := range spec.Blocks[i].Workers {
			without(spec.Blocks[i].Workers[j].Invalidate)
		}
	}
}
