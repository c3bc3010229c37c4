// Command mst finds the minimum spanning forest of a randomly generated graph (GM
// in LIBRA's Table 1), with Boruvka's algorithm: all trees at once take their
// lightest edge to another tree, until there is none. The graph decides how many
// rounds that takes, and how soon edges drop out.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"sync/atomic"

	"libra.dev/libra/loadtest/functions/graph"
	"libra.dev/libra/loadtest/functions/parallel"
	"libra.dev/libra/loadtest/functions/server"
)

const (
	blockEdges = 64 << 10
	// A worker is worth starting for this many edges.
	edgesPerWorker = 128 << 10
)

type result struct {
	Nodes  int   `json:"nodes"`
	Edges  int   `json:"edges"`
	Chosen int   `json:"chosen"` // edges of the forest
	Weight int64 `json:"weight"` // of the forest
	Trees  int   `json:"trees"`
	Rounds int   `json:"rounds"`
}

func work(ctx context.Context, body []byte) (any, error) {
	var s graph.Spec
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is not a graph specification: %w", err)}
	}
	if err := s.Validate(); err != nil {
		return nil, server.BadRequestError{Err: err}
	}
	workers := parallel.Workers(s.Edges, edgesPerWorker)
	edges, err := s.Generate(ctx, workers)
	if err != nil {
		return nil, err
	}
	f := newForest(s.Nodes, edges)
	rounds := 0
	for more := true; more; rounds++ {
		if more, err = f.round(ctx, workers); err != nil {
			return nil, err
		}
	}
	return result{Nodes: s.Nodes, Edges: s.Edges, Chosen: f.chosen, Weight: f.weight, Trees: s.Nodes - f.chosen, Rounds: rounds}, nil
}

// none stands for the lightest edge of a tree that no edge leaves.
const none = math.MaxUint64

// forest is a forest while it grows.
type forest struct {
	tree []int32 // the node that names each node's tree
	// lightest is, for each tree, the lightest edge that leaves it: the weight,
	// and then the place of the edge, so that no two are equal.
	lightest []atomic.Uint64
	// edges are the edges that may still be between trees, in blocks that shrink.
	edges  [][]graph.Edge
	chosen int
	weight int64
}

func newForest(nodes int, edges []graph.Edge) *forest {
	f := &forest{tree: make([]int32, nodes), lightest: make([]atomic.Uint64, nodes)}
	for n := range f.tree {
		f.tree[n] = int32(n)
	}
	for start := 0; start < len(edges); start += blockEdges {
		f.edges = append(f.edges, edges[start:min(start+blockEdges, len(edges))])
	}
	return f
}

// round joins each tree with the one at its lightest edge. It reports whether any
// edge is left.
func (f *forest) round(ctx context.Context, workers int) (more bool, err error) {
	for n := range f.lightest {
		f.lightest[n].Store(none)
	}
	if err := parallel.Do(ctx, workers, len(f.edges), func(b int) error { f.offer(b); return nil }); err != nil {
		return false, err
	}
	for n := range f.lightest {
		best := f.lightest[n].Load()
		if best == none {
			continue
		}
		more = true
		place := int(uint32(best))
		e := f.edges[place/blockEdges][place%blockEdges]
		// Two trees may have chosen the same edge.
		if a, b := f.find(e.A), f.find(e.B); a != b {
			f.tree[max(a, b)] = min(a, b)
			f.chosen++
			f.weight += int64(e.Weight)
		}
	}
	// A tree's name is never above its nodes' numbers, so in ascending order one
	// step leads to a name that is already right.
	for n := range f.tree {
		f.tree[n] = f.tree[f.tree[n]]
	}
	return more, nil
}

// offer drops the edges of a block that are within a tree and offers the others
// to the trees at both ends.
func (f *forest) offer(block int) {
	left := f.edges[block][:0]
	for _, e := range f.edges[block] {
		a, b := f.tree[e.A], f.tree[e.B]
		if a == b {
			continue
		}
		offered := uint64(e.Weight)<<32 | uint64(block*blockEdges+len(left))
		left = append(left, e)
		for _, t := range [...]int32{a, b} {
			for {
				best := f.lightest[t].Load()
				if offered >= best || f.lightest[t].CompareAndSwap(best, offered) {
					break
				}
			}
		}
	}
	f.edges[block] = left
}

// find returns the name of a node's tree, and shortens the path to it.
func (f *forest) find(node int32) int32 {
	for f.tree[node] != node {
		f.tree[node] = f.tree[f.tree[node]]
		node = f.tree[node]
	}
	return node
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
