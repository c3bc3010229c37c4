// Command pagerank ranks the nodes of a randomly generated graph (GP in LIBRA's
// Table 1). The body describes any graph in about the same number of bytes, so
// that the cost follows the content and not the size.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"

	"libra.dev/libra/loadtest/functions/server"
)

const (
	maxNodes      = 1 << 20
	maxEdges      = 8 << 20
	maxIterations = 1000
)

// spec is the body of a request.
type spec struct {
	Seed      uint64  `json:"seed"`
	Nodes     int     `json:"nodes"`
	Edges     int     `json:"edges"`
	Damping   float64 `json:"damping"`
	Tolerance float64 `json:"tolerance"`
}

func (s spec) validate() error {
	switch {
	case s.Nodes < 1 || s.Nodes > maxNodes:
		return fmt.Errorf("nodes is %d; it must be 1 to %d", s.Nodes, maxNodes)
	case s.Edges < 1 || s.Edges > maxEdges:
		return fmt.Errorf("edges is %d; it must be 1 to %d", s.Edges, maxEdges)
	case !(s.Damping > 0 && s.Damping < 1):
		return fmt.Errorf("damping is %v; it must be between 0 and 1", s.Damping)
	case !(s.Tolerance > 0 && s.Tolerance < 1):
		return fmt.Errorf("tolerance is %v; it must be between 0 and 1", s.Tolerance)
	}
	return nil
}

type result struct {
	Nodes      int `json:"nodes"`
	Edges      int `json:"edges"`
	Iterations int `json:"iterations"`
	Top        int `json:"top"` // the node with the highest rank
	// Sum is the sum of all ranks in millionths: 1,000,000 unless the ranking is wrong.
	Sum int `json:"sum_ppm"`
}

func work(ctx context.Context, body []byte) (any, error) {
	var s spec
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, server.BadRequestError{Err: fmt.Errorf("the body is not a graph specification: %w", err)}
	}
	if err := s.validate(); err != nil {
		return nil, server.BadRequestError{Err: err}
	}
	ranks, iterations, err := generate(s).rank(ctx, s.Damping, s.Tolerance)
	if err != nil {
		return nil, err
	}
	r := result{Nodes: s.Nodes, Edges: s.Edges, Iterations: iterations}
	var sum float64
	for n, rank := range ranks {
		sum += rank
		if rank > ranks[r.Top] {
			r.Top = n
		}
	}
	r.Sum = int(math.Round(sum * 1e6))
	return r, nil
}

// graph holds the edges by their target: those into node n come from
// sources[first[n]:first[n+1]].
type graph struct {
	first   []int32
	sources []int32
	out     []int32 // edges out of each node
}

// generate draws edges whose targets are skewed towards low nodes, as links are.
func generate(s spec) graph {
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	from, to := make([]int32, s.Edges), make([]int32, s.Edges)
	g := graph{first: make([]int32, s.Nodes+1), sources: make([]int32, s.Edges), out: make([]int32, s.Nodes)}
	for e := range s.Edges {
		u := rng.Float64()
		from[e], to[e] = rng.Int32N(int32(s.Nodes)), int32(u*u*float64(s.Nodes))
		g.out[from[e]]++
		g.first[to[e]+1]++
	}
	for n := range s.Nodes {
		g.first[n+1] += g.first[n]
	}
	next := append([]int32(nil), g.first[:s.Nodes]...)
	for e := range s.Edges {
		g.sources[next[to[e]]] = from[e]
		next[to[e]]++
	}
	return g
}

// rank iterates until at most tolerance of the rank moves, or maxIterations times.
func (g graph) rank(ctx context.Context, damping, tolerance float64) ([]float64, int, error) {
	n := len(g.out)
	ranks, share := make([]float64, n), make([]float64, n)
	for i := range ranks {
		ranks[i] = 1 / float64(n)
	}
	for iteration := 1; iteration <= maxIterations; iteration++ {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		dangling := 0.0
		for i, r := range ranks {
			if g.out[i] == 0 {
				dangling += r
				share[i] = 0
				continue
			}
			share[i] = r / float64(g.out[i])
		}
		base := (1 - damping + damping*dangling) / float64(n)
		moved := 0.0
		for i := range ranks {
			in := 0.0
			for _, source := range g.sources[g.first[i]:g.first[i+1]] {
				in += share[source]
			}
			r := base + damping*in
			moved += math.Abs(r - ranks[i])
			ranks[i] = r
		}
		if moved <= tolerance {
			return ranks, iteration, nil
		}
	}
	return ranks, maxIterations, nil
}

func main() { server.Main(server.Handler(work), net.ListenConfig{}) }
