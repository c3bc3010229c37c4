package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var fewCallees = callees{[]string{"a", "b"}, 4, 8}

func TestArrivalsFollowFromTheirSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, rate := rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.1, 100).Draw(t, "rate")
		all := arrivals(seed, rate, 20*time.Second, fewCallees)
		if !slices.Equal(all, arrivals(seed, rate, 20*time.Second, fewCallees)) {
			t.Error("the same seed made other requests")
		}
		before := time.Duration(0)
		for _, a := range all {
			if a.at < before || a.at >= 20*time.Second || a.set < 1 || a.set > 4 || a.input < 0 || a.input >= 8 {
				t.Fatalf("%+v, after %v", a, before)
			}
			before = a.at
		}
	})
}

// A block has as many arrivals as were asked for, in bursts, and as many for each function, copy
// and input.
func TestArrivalsHaveTheirRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, rate := rapid.Uint64().Draw(t, "seed"), rapid.Float64Range(0.1, 100).Draw(t, "rate")
		length := time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second
		all := arrivals(seed, rate, length, fewCallees)
		want := 0.0
		for s := range int(length / time.Second) {
			if s%10 < 5 {
				want += 0.6 * rate
			} else {
				want += 1.4 * rate
			}
		}
		if math.Abs(float64(len(all))-want) > 0.51 {
			t.Errorf("%d in %v, want %.2f", len(all), length, want)
		}
		counts := map[string][]int{"functions": make([]int, 2)}
		for _, f := range fewCallees.functions {
			counts["inputs of "+f], counts["copies of "+f] = make([]int, 8), make([]int, 4)
		}
		for _, a := range all {
			counts["functions"][slices.Index(fewCallees.functions, a.function)]++
			counts["inputs of "+a.function][a.input]++
			counts["copies of "+a.function][a.set-1]++
		}
		for of, n := range counts {
			if slices.Max(n)-slices.Min(n) > 1 {
				t.Errorf("%s: %v", of, n)
			}
		}
	})
}

func TestArrivalsComeInBursts(t *testing.T) {
	all := arrivals(1, 50, 1000*time.Second, fewCallees)
	burst := 0
	for _, a := range all {
		if a.at/burstPhase%2 == 1 {
			burst++
		}
	}
	if share := float64(burst) / float64(len(all)); share < 0.69 || share > 0.71 {
		t.Errorf("%.3f of them are in bursts, want 0.7", share)
	}
}

func TestSeedsDifferByWhatTheyAreFor(t *testing.T) {
	seen := map[uint64]bool{}
	for _, seed := range []uint64{1, 2} {
		for _, what := range [][]any{{"requests", 90, 10, 1}, {"requests", 90, 10, 2}, {"requests", 9, 010, 1}, {"cost", 90, 10, 1}} {
			seen[seedOf(seed, what...)] = true
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d seeds of 8 are different", len(seen))
	}
}
