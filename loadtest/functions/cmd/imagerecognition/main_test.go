package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"libra.dev/libra/loadtest/functions/inputs/inputstest"
	"libra.dev/libra/loadtest/functions/server"
)

func TestWorkCountsTheThings(t *testing.T) {
	inputstest.Check(t, "imagerecognition", 5, newNetwork().work)
}

func TestConvolutionIsItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		side, in, out := 2*rapid.IntRange(1, 5).Draw(t, "half a side"), rapid.IntRange(1, 3).Draw(t, "in"), rapid.IntRange(1, 3).Draw(t, "out")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		c := newConvolution(rng, in, out, true)
		from, to := make([]float32, in*side*side), make([]float32, out*side*side)
		for i := range from {
			from[i] = float32(rng.NormFloat64())
		}
		c.apply(from, side, to)
		for i, got := range to {
			o, y, x := i/side/side, i/side%side, i%side
			want := 0.0
			for channel := range in {
				for k := range 9 {
					if sx, sy := x+k%3-1, y+k/3-1; sx >= 0 && sx < side && sy >= 0 && sy < side {
						want += float64(c.weights[(o*in+channel)*9+k]) * float64(from[(channel*side+sy)*side+sx])
					}
				}
			}
			if math.Abs(float64(got)-max(want, 0)) > 1e-4 {
				t.Fatalf("output %d at %d,%d is %v, want %v", o, x, y, got, max(want, 0))
			}
		}
		pooled := make([]float32, len(to)/4)
		pool(to, side, pooled)
		for i, got := range pooled {
			half := side / 2
			channel, y, x := i/half/half, i/half%half, i%half
			at := func(dx, dy int) float32 { return to[(channel*side+2*y+dy)*side+2*x+dx] }
			if want := max(at(0, 0), at(1, 0), at(0, 1), at(1, 1)); got != want {
				t.Fatalf("pooled %d is %v, want %v", i, got, want)
			}
		}
	})
}

func TestWorkRefuses(t *testing.T) {
	_, err := (&network{}).work(context.Background(), []byte("hello"))
	if !errors.As(err, &server.BadRequestError{}) || !strings.Contains(err.Error(), "not a JPEG picture") {
		t.Errorf("got %v, want a bad request", err)
	}
}
