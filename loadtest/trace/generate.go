package trace

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
)

// Generate makes a trace of some functions and minutes with the statistics s, for
// those without the data set. It draws a function's rate, dispersion, median
// duration, spread and memory independently of each other:
//
//   - The rate is drawn from the group's rate classes, and within a class so that
//     each doubling is equally likely.
//   - A timer calls at equal distances. Other calls come in batches at random
//     times, with geometric sizes around the mean that gives the dispersion.
//   - Durations have the drawn median and spread. The 0th and the 100th percentile
//     are as far from the median as the 1st and the 99th, and half as far again.
//
// It leaves out the rhythm of day and week, and calls of an app's functions to
// each other.
func Generate(seed uint64, s Stats, functions, minutes int) (Trace, error) {
	if functions < 1 || minutes < 1 {
		return Trace{}, fmt.Errorf("a trace of %d functions and %d minutes; it must have at least 1 of each", functions, minutes)
	}
	t := Trace{First: 1, Minutes: minutes}
	for i := range functions {
		id := fmt.Sprintf("generated/%d/%d", seed, i)
		// Each function has its own random numbers, so that a longer trace begins
		// with the functions of a shorter one.
		rng := randomFor(seed, id)
		group, trigger := s.Others, "http"
		// Triggers alternate instead of being drawn, so that their share is right
		// in a small trace too.
		if share := s.Timers.Share; math.Floor(float64(i+1)*share+1e-9) > math.Floor(float64(i)*share+1e-9) {
			group, trigger = s.Timers, TriggerTimer
		}
		f := Function{ID: id, Trigger: trigger}
		perMinute := group.rate(rng)
		if trigger == TriggerTimer {
			f.PerMinute = periodic(rng, perMinute, minutes)
		} else {
			f.PerMinute = batches(rng, perMinute, group.Dispersion.at(rng.Float64()), minutes)
		}
		if f.total(0, minutes) == 0 {
			// A trace has only functions that were called.
			f.PerMinute[rng.IntN(minutes)] = 1
		}
		f.Durations = spread(group.MedianMS.at(rng.Float64()), s.Middle.at(rng.Float64()), s.Tail.at(rng.Float64()))
		f.MemoryMB = s.MemoryMB.at(rng.Float64())
		t.Functions = append(t.Functions, f)
	}
	return t, nil
}

func randomFor(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// rate draws a rate, in calls per minute.
func (g Group) rate(rng *rand.Rand) float64 {
	class, u := 0, rng.Float64()
	for class < len(g.Rates)-1 && u >= g.Rates[class] {
		u -= g.Rates[class]
		class++
	}
	low, high := rateBounds[class], rateBounds[class+1]
	return low * math.Pow(high/low, rng.Float64())
}

func periodic(rng *rand.Rand, perMinute float64, minutes int) []int32 {
	calls := make([]int32, minutes)
	period := 1 / perMinute
	for at := rng.Float64() * period; at < float64(minutes); at += period {
		calls[int(at)]++
	}
	return calls
}

// batches draws calls whose variance per minute is about dispersion times their
// mean: batches of a geometric size with mean m give 2m − 1.
func batches(rng *rand.Rand, perMinute, dispersion float64, minutes int) []int32 {
	calls := make([]int32, minutes)
	m := max(1, (dispersion+1)/2)
	for at := rng.ExpFloat64() * m / perMinute; at < float64(minutes); at += rng.ExpFloat64() * m / perMinute {
		calls[int(at)] += int32(geometric(rng, m))
	}
	return calls
}

// geometric draws a number of 1 or more, geometrically distributed with a mean.
func geometric(rng *rand.Rand, mean float64) int {
	if mean <= 1 {
		return 1
	}
	return 1 + int(math.Log1p(-rng.Float64())/math.Log1p(-1/mean))
}

// spread makes durations around a median. middle and tail are as in Stats.
func spread(median, middle, tail float64) Durations {
	half, far := math.Log1p(middle)/2, math.Log1p(tail)
	far = max(far, half)
	at := func(away float64) float64 { return max(0, math.Expm1(math.Log1p(median)+away)) }
	d := Durations{at(-1.5 * far), at(-far), at(-half), median, at(half), at(far), at(1.5 * far)}
	slices.Sort(d[:])
	return d
}
