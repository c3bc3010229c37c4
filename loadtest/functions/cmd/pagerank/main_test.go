package main

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/functions/server"
)

func TestRankOfAKnownGraph(t *testing.T) {
	// 0 and 1 link to each other and to 2, which links nowhere.
	g := graph{first: []int32{0, 1, 2, 4}, sources: []int32{1, 0, 0, 1}, out: []int32{2, 2, 0}}
	ranks, _, err := g.rank(context.Background(), 0.85, 1e-12)
	if err != nil {
		t.Fatal(err)
	}
	// By hand: x = b + 0.425x and y = b + 0.85x, with 2x + y = 1.
	x := 1 / (2 + (1 - 0.425) + 0.85)
	for i, want := range []float64{x, x, 1 - 2*x} {
		if math.Abs(ranks[i]-want) > 1e-9 {
			t.Errorf("rank of node %d is %v, want %v", i, ranks[i], want)
		}
	}
}

func TestWorkIsTheSameEachTime(t *testing.T) {
	body := []byte(`{"seed":7,"nodes":500,"edges":4000,"damping":0.85,"tolerance":1e-6}`)
	first, err := work(context.Background(), body)
	if err != nil {
		t.Fatal(err)
	}
	again, err := work(context.Background(), body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("(-first +again):\n%s", diff)
	}
	if sum := first.(result).Sum; sum != 1_000_000 {
		t.Errorf("the ranks add up to %d millionths", sum)
	}
}

func TestWorkRefuses(t *testing.T) {
	for body, want := range map[string]string{
		`{`: "not a graph specification",
		`{"nodes":0,"edges":1,"damping":0.85,"tolerance":1e-6}`:         "nodes",
		`{"nodes":9,"edges":99999999,"damping":0.85,"tolerance":1e-6}`:  "edges",
		`{"nodes":9,"edges":9,"damping":1.5,"tolerance":1e-6}`:          "damping",
		`{"nodes":9,"edges":9,"damping":0.85,"tolerance":0}`:            "tolerance",
		`{"seed":-1,"nodes":9,"edges":9,"damping":0.8,"tolerance":0.1}`: "not a graph specification",
	} {
		_, err := work(context.Background(), []byte(body))
		if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a bad request that names %q", body, err, want)
		}
	}
}
