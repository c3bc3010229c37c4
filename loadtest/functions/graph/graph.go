// Package graph makes the random graphs that the functions on graphs work on. The
// body of a request describes any of them in about the same number of bytes, so
// that the cost follows the content and not the size.
package graph

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"libra.dev/libra/loadtest/functions/parallel"
)

// The kinds of graphs: where the edges of a node go.
const (
	Random  = "random"  // to any node: few steps to everywhere
	Hubs    = "hubs"    // to a few nodes mostly, as in a network of people
	Lattice = "lattice" // to a neighbour on a grid, as roads do: many steps
)

// Kinds are all kinds.
var Kinds = []string{Random, Hubs, Lattice}

const (
	maxNodes  = 1 << 20
	maxEdges  = 4 << 20
	maxParts  = 64
	maxWeight = 1 << 20

	blockEdges = 64 << 10
)

// Spec describes a graph.
type Spec struct {
	Seed  uint64 `json:"seed"`
	Kind  string `json:"kind"`
	Nodes int    `json:"nodes"`
	Edges int    `json:"edges"`
	// Parts is the number of parts: each is connected, but not to the others. The
	// first has one share of the nodes, and each other one two shares more than
	// the one before.
	Parts int `json:"parts"`
}

// Validate returns an error that says which field is not accepted.
func (s Spec) Validate() error {
	switch {
	case !slices.Contains(Kinds, s.Kind):
		return fmt.Errorf("kind is %.20q; it must be one of %q", s.Kind, Kinds)
	case s.Nodes < 1 || s.Nodes > maxNodes:
		return fmt.Errorf("nodes is %d; it must be 1 to %d", s.Nodes, maxNodes)
	case s.Parts < 1 || s.Parts > maxParts || s.Parts*s.Parts > s.Nodes:
		return fmt.Errorf("parts is %d; it must be 1 to %d, and its square must not exceed the number of nodes, %d", s.Parts, maxParts, s.Nodes)
	case s.Edges < s.Nodes || s.Edges > maxEdges:
		return fmt.Errorf("edges is %d; it must be from %d, one per node, to %d", s.Edges, s.Nodes, maxEdges)
	}
	return nil
}

// Bounds returns the first node of each part, and then the number of nodes.
func (s Spec) Bounds() []int {
	bounds := make([]int, s.Parts+1)
	for p := range bounds {
		bounds[p] = s.Nodes * p * p / (s.Parts * s.Parts)
	}
	return bounds
}

// Edge connects two nodes both ways.
type Edge struct {
	A, B   int32
	Weight uint32 // 1 to 2^20
}

// Generate makes the edges of a valid graph, the same for any number of workers.
func (s Spec) Generate(ctx context.Context, workers int) ([]Edge, error) {
	bounds := s.Bounds()
	edges := make([]Edge, s.Edges)
	blocks := (s.Edges + blockEdges - 1) / blockEdges
	err := parallel.Do(ctx, workers, blocks, func(block int) error {
		rng := rand.New(rand.NewPCG(s.Seed, uint64(block)))
		for e := block * blockEdges; e < min((block+1)*blockEdges, s.Edges); e++ {
			// The first edges connect each part: one from each node to a node
			// before it.
			node := e
			if e >= s.Nodes {
				node = rng.IntN(s.Nodes)
			}
			part, _ := slices.BinarySearch(bounds[1:], node+1)
			first, nodes := bounds[part], bounds[part+1]-bounds[part]
			other := 0
			if e < s.Nodes && e > first {
				other = s.before(rng, node-first, nodes)
			} else {
				other = s.near(rng, node-first, nodes)
			}
			edges[e] = Edge{A: int32(node), B: int32(first + other), Weight: 1 + rng.Uint32N(maxWeight)}
		}
		return nil
	})
	return edges, err
}

// before draws a neighbour with a lower number than the node's, which is at least
// 1, in a part of this many nodes.
func (s Spec) before(rng *rand.Rand, node, nodes int) int {
	if s.Kind != Lattice {
		return s.draw(rng, node)
	}
	width := side(nodes)
	if node < width || node%width > 0 && rng.IntN(2) == 0 {
		return node - 1
	}
	return node - width
}

// near draws any neighbour, possibly the node itself.
func (s Spec) near(rng *rand.Rand, node, nodes int) int {
	if s.Kind != Lattice {
		return s.draw(rng, nodes)
	}
	step := 1
	if rng.IntN(2) == 0 {
		step = side(nodes)
	}
	if node+step < nodes {
		return node + step
	}
	return node
}

// draw draws one of the first nodes of a part.
func (s Spec) draw(rng *rand.Rand, nodes int) int {
	if s.Kind == Hubs {
		u := rng.Float64()
		return int(u * u * u * float64(nodes))
	}
	return rng.IntN(nodes)
}

// side returns the side of a grid of this many nodes.
func side(nodes int) int { return max(1, int(math.Sqrt(float64(nodes)))) }
