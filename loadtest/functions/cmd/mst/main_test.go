package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/graph"
	"libra.dev/libra/loadtest/functions/inputs/inputstest"
	"libra.dev/libra/loadtest/functions/server"
)

func grown(t interface{ Fatal(...any) }, nodes int, edges []graph.Edge, workers int) *forest {
	f := newForest(nodes, append([]graph.Edge(nil), edges...))
	for more := true; more; {
		var err error
		if more, err = f.round(context.Background(), workers); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// prim grows a tree from each node that is in none, by its lightest
// edge.
func prim(nodes int, edges []graph.Edge) (chosen int, weight int64) {
	in := make([]bool, nodes)
	for start := range nodes {
		if in[start] {
			continue
		}
		tree := map[int32]bool{int32(start): true}
		for {
			lightest := -1
			for i, e := range edges {
				if tree[e.A] != tree[e.B] && (lightest < 0 || e.Weight < edges[lightest].Weight) {
					lightest = i
				}
			}
			if lightest < 0 {
				break
			}
			tree[edges[lightest].A], tree[edges[lightest].B] = true, true
			chosen, weight = chosen+1, weight+int64(edges[lightest].Weight)
		}
		for n := range tree {
			in[n] = true
		}
	}
	return chosen, weight
}

func TestForestIsTheLightest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 30).Draw(t, "nodes")
		node := rapid.Int32Range(0, int32(nodes-1))
		edges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) graph.Edge {
			// Few weights, so that many are the same.
			return graph.Edge{A: node.Draw(t, "a"), B: node.Draw(t, "b"), Weight: rapid.Uint32Range(1, 5).Draw(t, "weight")}
		}), 0, 80).Draw(t, "edges")
		chosen, weight := prim(nodes, edges)
		if f := grown(t, nodes, edges, 2); f.chosen != chosen || f.weight != weight {
			t.Fatalf("%d edges of weight %d, want %d of %d", f.chosen, f.weight, chosen, weight)
		}
	})
}

func TestWorkFindsWhatKruskalDoes(t *testing.T) {
	inputstest.Check(t, "mst", 2, work)
}

func TestWorkRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{`:                         "not a graph specification",
		`{"seed":1,"kind":"star"}`:  "kind",
		`{"kind":"hubs","nodes":0}`: "nodes",
		`{"kind":"hubs","nodes":9,"parts":1,"edges":8}`: "edges",
	} {
		_, err := work(context.Background(), []byte(body))
		if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a bad request that names %q", body, err, want)
		}
	}
}
