package main

import (
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

// Over a long time there are as many arrivals as were asked for,
// in bursts.
func TestArrivalsHaveTheirRate(t *testing.T) {
	const rate = 50
	all := arrivals(1, rate, 1000*time.Second, fewCallees)
	if n := len(all); n < 49_000 || n > 51_000 {
		t.Errorf("%d in 1000 s, want about %d", n, 1000*rate)
	}
	burst, sets := 0, map[int]int{}
	for _, a := range all {
		sets[a.set]++
		if a.at/burstPhase%2 == 1 {
			burst++
		}
	}
	if share := float64(burst) / float64(len(all)); share < 0.69 || share > 0.71 {
		t.Errorf("%.3f of them are in bursts, want 0.7", share)
	}
	for set, n := range sets {
		if n < 11_500 || n > 13_500 {
			t.Errorf("set %d has %d of them, want a quarter", set, n)
		}
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
