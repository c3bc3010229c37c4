//go:build !race

// With the race detector a sync.Pool forgets at random.

package tapp

import (
	"fmt"
	"testing"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

func TestPlaceDoesNotAllocate(t *testing.T) {
	nodes := manyNodes(100)
	candidates := podsOn(nodes, 1)
	first := func(v1alpha1.Strategy) placement.Policy {
		return func(*placement.Query, []placement.Candidate) int { return 0 }
	}
	for name, spec := range benchmarked {
		p := compiled(t, spec, nodes, Options{Policy: first})
		e := &enforced{Program: p, in: &force{platform: first("")}, counts: &counts{}}
		q := &placement.Query{Revision: of}
		if n := testing.AllocsPerRun(100, func() { e.Place(q, candidates) }); n != 0 {
			t.Errorf("%s: a decision makes %v allocations, want none", name, n)
		}
	}
}

// Nor does a decision by the lists that a revision keeps.
func TestSortedDoesNotAllocate(t *testing.T) {
	nodes := manyNodes(100)
	slots := placement.NewSlots(nil, nil)
	for i, c := range podsOn(nodes, 1) {
		slots.SetPod(of, placement.Pod{Name: fmt.Sprint("shop/", i), Node: c.Node, IPs: []string{fmt.Sprint("10.0.0.", i)}, Ready: true})
	}
	first := func(v1alpha1.Strategy) placement.Policy {
		return func(*placement.Query, []placement.Candidate) int { return 0 }
	}
	pods := slots.Of(of, 1)
	for name, spec := range benchmarked {
		p := compiled(t, spec, nodes, Options{Policy: first})
		take := func() { pods.Take("10.0.0.1:8012", placement.Ask{Program: p}).Release() }
		take()
		if n := testing.AllocsPerRun(100, take); n > 0 {
			t.Errorf("%s: a decision makes %v allocations, want none", name, n)
		}
	}
}
