package inputs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"libra.dev/libra/loadtest/functions/graph"
)

// Ranking asks for the ranks of a graph with this many edges, which the size of the body does not tell.
func Ranking(rng *rand.Rand, edges int) Input {
	nodes := edges / (5 + rng.IntN(20))
	return described(struct {
		Seed      uint32  `json:"seed"`
		Nodes     int     `json:"nodes"`
		Edges     int     `json:"edges"`
		Damping   float64 `json:"damping"`
		Tolerance float64 `json:"tolerance"`
	}{rng.Uint32(), nodes, edges, []float64{0.85, 0.9, 0.95}[rng.IntN(3)], []float64{1e-7, 1e-8, 1e-9}[rng.IntN(3)]},
		// The top node is left out. It is the first node, which has the most edges, unless that has one
		// edge of its own and gives most of its rank to another.
		map[string]int64{"nodes": int64(nodes), "edges": int64(edges), "sum_ppm": 1_000_000})
}

// specOf draws a graph with this many edges, and generates it.
func specOf(rng *rand.Rand, edges int) (graph.Spec, []graph.Edge) {
	s := graph.Spec{
		Seed: uint64(rng.Uint32()), Kind: graph.Kinds[rng.IntN(len(graph.Kinds))],
		Nodes: edges / uniform(rng, 3, 16), Edges: edges, Parts: uniform(rng, 1, 8),
	}
	if err := s.Validate(); err != nil {
		panic(fmt.Sprintf("drew a graph that no function takes: %v", err))
	}
	made, err := s.Generate(context.Background(), 1)
	if err != nil {
		panic(fmt.Sprintf("a graph that nobody waits for was not made: %v", err))
	}
	return s, made
}

// forest asks for a forest of least weight. The expected weight is from Kruskal's algorithm, which
// takes the edges by their weight; the function does not.
func forest(rng *rand.Rand, size sizer) Input {
	s, edges := specOf(rng, size(rng, 80_000, 3_000_000))
	order := make([]uint64, len(edges))
	for i, e := range edges {
		order[i] = uint64(e.Weight)<<32 | uint64(i)
	}
	slices.Sort(order)
	above := make([]int32, s.Nodes)
	for n := range above {
		above[n] = int32(n)
	}
	top := func(n int32) int32 {
		for above[n] != n {
			above[n], n = above[above[n]], above[n]
		}
		return n
	}
	weight := int64(0)
	for _, o := range order {
		e := edges[uint32(o)]
		if a, b := top(e.A), top(e.B); a != b {
			above[a] = b
			weight += int64(e.Weight)
		}
	}
	return described(s, map[string]int64{
		"nodes": int64(s.Nodes), "edges": int64(s.Edges), "trees": int64(s.Parts), "chosen": int64(s.Nodes - s.Parts), "weight": weight,
	})
}

// search asks for searches from up to four nodes, which may be in small parts of the graph or in large
// ones.
func search(rng *rand.Rand, size sizer) Input {
	s, edges := specOf(rng, size(rng, 60_000, 4_000_000))
	// Lists of each node's edges: of edge e, 2e is at A and 2e+1 at B.
	first, next := make([]int32, s.Nodes), make([]int32, 2*len(edges))
	for n := range first {
		first[n] = -1
	}
	for i, e := range edges {
		next[2*i], first[e.A] = first[e.A], int32(2*i)
		next[2*i+1], first[e.B] = first[e.B], int32(2*i+1)
	}
	body := struct {
		graph.Spec
		Starts []int32 `json:"starts"`
	}{Spec: s}
	var reached, deepest, steps int64
	bounds := s.Bounds()
	for range uniform(rng, 1, 4) {
		part := rng.IntN(s.Parts)
		start := int32(uniform(rng, bounds[part], bounds[part+1]-1))
		body.Starts = append(body.Starts, start)
		distance := make([]int32, s.Nodes)
		distance[start] = 1
		queue := []int32{start}
		for at := 0; at < len(queue); at++ {
			node := queue[at]
			steps += int64(distance[node] - 1)
			deepest = max(deepest, int64(distance[node]-1))
			for i := first[node]; i >= 0; i = next[i] {
				other := edges[i/2].A
				if i%2 == 0 {
					other = edges[i/2].B
				}
				if distance[other] == 0 {
					distance[other] = distance[node] + 1
					queue = append(queue, other)
				}
			}
		}
		reached += int64(len(queue))
	}
	return described(body, map[string]int64{
		"nodes": int64(s.Nodes), "edges": int64(s.Edges), "searches": int64(len(body.Starts)),
		"reached": reached, "deepest": deepest, "distance_sum": steps,
	})
}
