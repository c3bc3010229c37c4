package agent

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

const owedInTests = 1000 // milli CPU

func readingOf(used time.Duration, cpuMilli int64) cgroup.Reading {
	return cgroup.Reading{CPU: used, Limit: api.Resources{CPUMilli: cpuMilli}}
}

func TestSafeguard(t *testing.T) {
	const ms = time.Millisecond
	type step struct {
		after   time.Duration
		reading cgroup.Reading
		trips   bool
		periods int64
	}
	for name, steps := range map[string][]step{
		"not lowered": {
			{reading: readingOf(0, 1000)},
			{after: 10 * ms, reading: readingOf(10*ms, 1000), periods: 3},
		},
		"use of before it was lowered": {
			{reading: readingOf(0, 1000)},
			{after: 90 * ms, reading: readingOf(90*ms, 200)},
			{after: 10 * ms, reading: readingOf(90*ms, 200)},
		},
		"what a window allows, in less than a window": {
			{reading: readingOf(0, 300)},
			{after: 10 * ms, reading: readingOf(10*ms, 300)},
			{after: 10 * ms, reading: readingOf(20*ms, 300)},
			{after: 4 * ms, reading: readingOf(24*ms, 300), trips: true},
		},
		"a sample that came late": {
			{reading: readingOf(0, 300)},
			{after: 70 * ms, reading: readingOf(20*ms, 300)},
			{after: 70 * ms, reading: readingOf(40*ms, 300)},
			{after: 70 * ms, reading: readingOf(66*ms, 300), trips: true},
		},
		"lowered further": {
			{reading: readingOf(0, 500)},
			{after: 50 * ms, reading: readingOf(30*ms, 300)},
			{after: 10 * ms, reading: readingOf(40*ms, 300)},
			{after: 10 * ms, reading: readingOf(54*ms, 300), trips: true},
		},
		"throttled": {
			{reading: readingOf(0, 300), periods: 7},
			{after: 10 * ms, reading: readingOf(0, 300), periods: 7},
			{after: 10 * ms, reading: readingOf(0, 300), periods: 8, trips: true},
		},
		"no limits": {
			{reading: readingOf(0, 0)},
			{after: 10 * ms, reading: readingOf(time.Second, 0), periods: 9},
		},
	} {
		var w watch
		at := epoch
		for i, s := range steps {
			at = at.Add(s.after)
			s.reading.ThrottledPeriods = s.periods
			if trips := w.add(sample{at, s.reading}, owedInTests, 0.8); trips != s.trips {
				t.Errorf("%s: sample %d trips: %v, want %v", name, i, trips, s.trips)
			}
		}
	}
}

// use is CPU used over time, in steps of a millisecond.
type use []time.Duration

// mostIn returns the most used in any window of so many milliseconds, and the use in
// all.
func (u use) mostIn(window int) (most, used time.Duration) {
	var in time.Duration
	for i, d := range u {
		in += d
		used += d
		if i >= window {
			in -= u[i-window]
		}
		most = max(most, in)
	}
	return most, used
}

func drawUse(t *rapid.T) use {
	var u use
	for len(u) < 1500 {
		length := rapid.IntRange(1, 150).Draw(t, "length")
		rate := time.Duration(rapid.IntRange(0, 2000).Draw(t, "rate")) * time.Microsecond
		for range length {
			u = append(u, rate)
		}
	}
	return u
}

// sampleAt calls add with samples of u at irregular times, until it says stop.
func (u use) sampleAt(t *rapid.T, limit int64, add func(at int, s sample) (stop bool)) {
	var used time.Duration
	next := 0
	for i, d := range u {
		if i == next {
			s := sample{epoch.Add(time.Duration(i) * time.Millisecond), readingOf(used, limit)}
			if add(i, s) {
				return
			}
			next += rapid.SampledFrom([]int{10, 10, 10, 10, 10, 9, 11, 14, 35}).Draw(t, "gap")
		}
		used += d
	}
}

// A container whose limit is lowered so that its peak in any 100 ms stays under the
// threshold never trips the safeguard.
func TestSafeguardAllowsWhatWasPredicted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := drawUse(t)
		threshold := rapid.Float64Range(0.01, 1).Draw(t, "threshold")
		peak, _ := u.mostIn(100)
		limit := int64(float64(peak)/threshold/float64(100*time.Millisecond)*1000) + 1
		if threshold*float64(limit)/1000*float64(100*time.Millisecond) <= float64(peak) {
			limit++ // it was a whole number, except for rounding
		}
		var w watch
		u.sampleAt(t, limit, func(at int, s sample) bool {
			if w.add(s, limit+1, threshold) {
				t.Fatalf("trips after %d ms at %dm, though no 100 ms used more than %v", at, limit, peak)
			}
			return false
		})
	})
}

// Use between two samples at most 100 ms apart that reaches the threshold trips the
// safeguard at the second sample.
func TestSafeguardTripsAtTheNextSample(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := drawUse(t)
		limit := rapid.Int64Range(10, 2000).Draw(t, "limit")
		allowed := time.Duration(0.8 * float64(limit) / 1000 * float64(peakWindow))
		var w watch
		var seen []sample
		u.sampleAt(t, limit, func(at int, s sample) bool {
			trips := w.add(s, limit+1, 0.8)
			crossed := false
			for _, before := range seen {
				crossed = crossed || s.at.Sub(before.at) <= peakWindow && s.CPU-before.CPU > allowed
			}
			seen = append(seen, s)
			if crossed && !trips {
				t.Fatalf("does not trip after %d ms at %dm", at, limit)
			}
			return trips
		})
	})
}
