package graph

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestGenerateConnectsEachPartAndNoTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.IntRange(1, 6).Draw(t, "parts")
		nodes := rapid.IntRange(parts*parts, 300).Draw(t, "nodes")
		s := Spec{
			Seed: rapid.Uint64().Draw(t, "seed"), Kind: rapid.SampledFrom(Kinds).Draw(t, "kind"),
			Nodes: nodes, Edges: rapid.IntRange(nodes, 3*nodes).Draw(t, "edges"), Parts: parts,
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		edges, err := s.Generate(context.Background(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(edges) != s.Edges {
			t.Fatalf("%d edges, want %d", len(edges), s.Edges)
		}
		// Find the lowest node that each node can reach, by passing it on until
		// nothing changes.
		lowest := make([]int32, nodes)
		for n := range lowest {
			lowest[n] = int32(n)
		}
		for changed := true; changed; {
			changed = false
			for _, e := range edges {
				if e.Weight < 1 || e.Weight > maxWeight {
					t.Fatalf("an edge of weight %d", e.Weight)
				}
				l := min(lowest[e.A], lowest[e.B])
				changed = changed || lowest[e.A] != l || lowest[e.B] != l
				lowest[e.A], lowest[e.B] = l, l
			}
		}
		bounds := s.Bounds()
		for p := range parts {
			for n := bounds[p]; n < bounds[p+1]; n++ {
				if int(lowest[n]) != bounds[p] {
					t.Fatalf("node %d of the part from %d is with %d", n, bounds[p], lowest[n])
				}
			}
		}
	})
}

func TestGenerateIsTheSameForAnyNumberOfWorkers(t *testing.T) {
	s := Spec{Seed: 3, Kind: Hubs, Nodes: 70_000, Edges: 3*blockEdges + 5, Parts: 4}
	one, err := s.Generate(context.Background(), 1)
	if err != nil {
		t.Fatal(err)
	}
	three, err := s.Generate(context.Background(), 3)
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(one, three) {
		t.Error("three workers made another graph than one")
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	good := Spec{Kind: Random, Nodes: 100, Edges: 200, Parts: 3}
	for want, change := range map[string]func(s *Spec){
		`kind is "star"`:    func(s *Spec) { s.Kind = "star" },
		"nodes is 0":        func(s *Spec) { s.Nodes = 0 },
		"nodes is 99999999": func(s *Spec) { s.Nodes = 99999999 },
		"parts is 0":        func(s *Spec) { s.Parts = 0 },
		"parts is 11":       func(s *Spec) { s.Parts = 11 },
		"edges is 99;":      func(s *Spec) { s.Edges = 99 },
		"edges is 99999999": func(s *Spec) { s.Edges = 99999999 },
	} {
		s := good
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
	}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}
