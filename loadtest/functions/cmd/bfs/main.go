// Command bfs searches a randomly generated graph breadth first from some of its
// nodes (GB in LIBRA's Table 1). The graph decides how much it reaches, and whether
// in a few broad steps, which it takes on all cores, or in many narrow ones.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync/atomic"

	"libra.dev/libra/loadtest/functions/graph"
	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	maxStarts = 8
	// A worker is worth starting for this many edges of the graph, or this many
	// nodes of a step.
	edgesPerWorker = 128 << 10
	nodesPerWorker = 4 << 10
)

// spec is the body of a request.
type spec struct {
	graph.Spec
	Starts []int32 `json:"starts"`
}

func (s spec) validate() error {
	if err := s.Validate(); err != nil {
		return err
	}
	if len(s.Starts) < 1 || len(s.Starts) > maxStarts {
		return fmt.Errorf("starts has %d nodes; it must have 1 to %d", len(s.Starts), maxStarts)
	}
	for i, n := range s.Starts {
		if n < 0 || int(n) >= s.Nodes {
			return fmt.Errorf("starts[%d] is %d; nodes are 0 to %d", i, n, s.Nodes-1)
		}
	}
	return nil
}

// result adds up all searches.
type result struct {
	Nodes    int   `json:"nodes"`
	Edges    int   `json:"edges"`
	Searches int   `json:"searches"`
	Reached  int   `json:"reached"`      // nodes, including those it starts from
	Deepest  int   `json:"deepest"`      // steps to the farthest node of all
	Steps    int64 `json:"distance_sum"` // steps to all nodes reached
	Broadest int   `json:"broadest"`     // the most nodes reached in one step
}

func work(ctx context.Context, body []byte) (any, error) {
	var s spec
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is not a graph specification: %w", err)}
	}
	if err := s.validate(); err != nil {
		return nil, server.BadRequestError{Err: err}
	}
	workers := parallel.Workers(s.Edges, edgesPerWorker)
	edges, err := s.Generate(ctx, workers)
	if err != nil {
		return nil, err
	}
	n, err := neighboursOf(ctx, s.Nodes, edges, workers)
	if err != nil {
		return nil, err
	}
	did := result{Nodes: s.Nodes, Edges: s.Edges, Searches: len(s.Starts)}
	seen := make([]atomic.Bool, s.Nodes)
	for _, start := range s.Starts {
		if err := n.search(ctx, start, seen, &did); err != nil {
			return nil, err
		}
	}
	return did, nil
}

// neighbours has the neighbours of all nodes: those of node n are
// nodes[first[n]:first[n+1]].
type neighbours struct {
	first []int32
	nodes []int32
}

func neighboursOf(ctx context.Context, nodes int, edges []graph.Edge, workers int) (neighbours, error) {
	n := neighbours{first: make([]int32, nodes+1), nodes: make([]int32, 2*len(edges))}
	// A worker reads all edges and writes to its own part of the nodes.
	each := func(do func(node, other int32)) error {
		return parallel.Do(ctx, workers, workers, func(w int) error {
			from, to := parallel.Range(w, workers, nodes)
			low, high := int32(from), int32(to)
			for _, e := range edges {
				if e.A >= low && e.A < high {
					do(e.A, e.B)
				}
				if e.B >= low && e.B < high {
					do(e.B, e.A)
				}
			}
			return nil
		})
	}
	next := make([]int32, nodes)
	if err := each(func(node, _ int32) { next[node]++ }); err != nil {
		return n, err
	}
	for node, degree := range next {
		n.first[node+1] = n.first[node] + degree
	}
	copy(next, n.first)
	err := each(func(node, other int32) {
		n.nodes[next[node]] = other
		next[node]++
	})
	return n, err
}

// search adds to did what it reaches from start. seen must be as long as there
// are nodes; its content does not matter.
func (n neighbours) search(ctx context.Context, start int32, seen []atomic.Bool, did *result) error {
	for i := range seen {
		seen[i].Store(false)
	}
	seen[start].Store(true)
	at := []int32{start}
	for depth := 0; len(at) > 0; depth++ {
		did.Reached += len(at)
		did.Deepest = max(did.Deepest, depth)
		did.Steps += int64(depth) * int64(len(at))
		did.Broadest = max(did.Broadest, len(at))
		var err error
		if at, err = n.step(ctx, at, seen); err != nil {
			return err
		}
	}
	return nil
}

// step returns the neighbours of the nodes in at that were not seen yet.
func (n neighbours) step(ctx context.Context, at []int32, seen []atomic.Bool) ([]int32, error) {
	workers := parallel.Workers(len(at), nodesPerWorker)
	if workers == 1 {
		return n.from(at, seen), ctx.Err()
	}
	found := make([][]int32, 4*workers)
	err := parallel.Do(ctx, workers, len(found), func(i int) error {
		from, to := parallel.Range(i, len(found), len(at))
		found[i] = n.from(at[from:to], seen)
		return nil
	})
	next := found[0]
	for _, f := range found[1:] {
		next = append(next, f...)
	}
	return next, err
}

func (n neighbours) from(at []int32, seen []atomic.Bool) []int32 {
	var next []int32
	for _, node := range at {
		for _, other := range n.nodes[n.first[node]:n.first[node+1]] {
			// Most have been seen, and a load is cheaper than a swap.
			if !seen[other].Load() && seen[other].CompareAndSwap(false, true) {
				next = append(next, other)
			}
		}
	}
	return next
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
