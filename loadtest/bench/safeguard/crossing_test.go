package main

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Unix(0, 0)

// burning samples, once every every, a thread that starts to run at begin after
// epoch. The kernel shows only whole ticks.
func burning(begin, length, every, tick time.Duration) []sample {
	var samples []sample
	for t := time.Duration(0); t <= length; t += every {
		samples = append(samples, sample{epoch.Add(t), max(0, t-begin) / tick * tick})
	}
	return samples
}

func TestCrossing(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		samples   []sample
		limit     int64
		at, seen  time.Duration // after epoch
		neverSeen bool
	}{
		"as it runs":                   {burning(200*ms, 400*ms, ms, ms), 300, 224 * ms, 224 * ms, false},
		"of whole ticks":               {burning(200*ms, 400*ms, ms, 5*ms), 300, 224 * ms, 225 * ms, false},
		"soon after it was lowered":    {burning(10*ms, 400*ms, ms, ms), 300, 34 * ms, 34 * ms, false},
		"a limit that it cannot reach": {burning(200*ms, 400*ms, ms, ms), 2000, 0, 0, true},
		"too short":                    {burning(200*ms, 220*ms, ms, ms), 300, 0, 0, true},
		"nothing":                      {nil, 300, 0, 0, true},
	} {
		at, seen, ok := crossing(tc.samples, tc.limit)
		if ok == tc.neverSeen {
			t.Errorf("%s: crossed: %v", name, ok)
		}
		if ok && (at.Sub(epoch) != tc.at || seen.Sub(epoch) != tc.seen) {
			t.Errorf("%s: crossed at %v, seen at %v, want %v and %v", name, at.Sub(epoch), seen.Sub(epoch), tc.at, tc.seen)
		}
	}
}

// Use that is spread out, so that no window reaches the threshold, is no crossing.
func TestNoCrossingBelowTheThreshold(t *testing.T) {
	var samples []sample
	for ms := range 1000 {
		at := time.Duration(ms) * time.Millisecond
		samples = append(samples, sample{epoch.Add(at), at * 23 / 100}) // 230m of a limit of 300m
	}
	if at, _, ok := crossing(samples, 300); ok {
		t.Errorf("crossed after %v", at.Sub(epoch))
	}
}

// However coarse the ticks and the samples are, a thread that runs crosses when it
// has run for the threshold, and the crossing is seen within a tick and a sample.
func TestCrossingIsWhereTheThreadWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Duration(rapid.Int64Range(0, 300).Draw(t, "begin")) * time.Millisecond
		every := time.Duration(rapid.Int64Range(100, 3000).Draw(t, "every")) * time.Microsecond
		tick := time.Duration(rapid.Int64Range(1, 10).Draw(t, "tick")) * time.Millisecond
		limit := rapid.Int64Range(100, 900).Draw(t, "limit")
		want := epoch.Add(begin + window*time.Duration(limit)/1000*4/5)
		at, seen, ok := crossing(burning(begin, time.Second, every, tick), limit)
		if !ok {
			t.Fatal("not seen")
		}
		if late := at.Sub(want); late < -tick || late > tick+every {
			t.Errorf("crossed %v after it did", late)
		}
		if seen.Before(want) || seen.Sub(want) > tick+every || seen.Before(at) {
			t.Errorf("seen %v after it crossed", seen.Sub(want))
		}
	})
}
