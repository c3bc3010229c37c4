package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/graph"
	"libra.dev/libra/loadtest/functions/inputs/inputstest"
	"libra.dev/libra/loadtest/functions/server"
)

func TestSearchReachesAllAtTheirDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 40).Draw(t, "nodes")
		node := rapid.Int32Range(0, int32(nodes-1))
		edges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) graph.Edge {
			return graph.Edge{A: node.Draw(t, "a"), B: node.Draw(t, "b")}
		}), 0, 60).Draw(t, "edges")
		start := node.Draw(t, "start")

		// Bellman-Ford: each edge may shorten a path, as many times as there are nodes.
		distance := make([]int, nodes)
		for n := range distance {
			distance[n] = nodes
		}
		distance[start] = 0
		for range nodes {
			for _, e := range edges {
				distance[e.A] = min(distance[e.A], distance[e.B]+1)
				distance[e.B] = min(distance[e.B], distance[e.A]+1)
			}
		}
		var want result
		for _, d := range distance {
			if d < nodes {
				want.Reached++
				want.Deepest = max(want.Deepest, d)
				want.Steps += int64(d)
			}
		}
		n, err := neighboursOf(context.Background(), nodes, edges, rapid.IntRange(1, 3).Draw(t, "workers"))
		if err != nil {
			t.Fatal(err)
		}
		var got result
		if err := n.search(context.Background(), start, make([]atomic.Bool, nodes), &got); err != nil {
			t.Fatal(err)
		}
		got.Broadest = 0
		if got != want {
			t.Fatalf("it says it did %+v, want %+v", got, want)
		}
	})
}

func TestWorkFindsWhatAQueueDoes(t *testing.T) {
	inputstest.Check(t, "bfs", 2, work)
}

func TestWorkRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{`:               "not a graph specification",
		`{"kind":"star"}`: "kind",
		`{"kind":"hubs","nodes":9,"parts":1,"edges":9}`:                        "starts has 0",
		`{"kind":"hubs","nodes":9,"parts":1,"edges":9,"starts":[0,9]}`:         "starts[1] is 9",
		`{"kind":"hubs","nodes":9,"parts":1,"edges":9,"starts":[-1]}`:          "starts[0] is -1",
		`{"kind":"hubs","nodes":9,"parts":4,"edges":9,"starts":[1]}`:           "parts",
		`{"kind":"hubs","nodes":9,"parts":1,"edges":9,"starts":[99999999999]}`: "not a graph specification",
	} {
		_, err := work(context.Background(), []byte(body))
		if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a bad request that says %q", body, err, want)
		}
	}
}
