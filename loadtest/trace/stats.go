package trace

import (
	"math"
	"slices"
)

// Quantiles are the 0th, 5th, 25th, 50th, 75th, 95th and 100th percentile of a
// quantity over functions.
type Quantiles [7]float64

var quantileRanks = [len(Quantiles{})]float64{0, 0.05, 0.25, 0.50, 0.75, 0.95, 1}

// at returns the value at a rank of 0 to 1. Between quantiles it interpolates on a
// logarithmic scale, because all these quantities spread over orders of magnitude.
func (q Quantiles) at(rank float64) float64 {
	return math.Expm1(interpolate(quantileRanks[:], func(i int) float64 { return math.Log1p(q[i]) }, rank))
}

func quantilesOf(values []float64) Quantiles {
	var q Quantiles
	if len(values) == 0 {
		return q
	}
	slices.Sort(values)
	for i, rank := range quantileRanks {
		at := rank * float64(len(values)-1)
		below := int(at)
		above := min(below+1, len(values)-1)
		q[i] = values[below] + (at-float64(below))*(values[above]-values[below])
	}
	return q
}

// rateBounds are the bounds of the rate classes, in calls per minute: under one an
// hour, under one a minute, under one a second, and more. The first and the last
// bound limit what Generate draws; Measure ignores them.
var rateBounds = [...]float64{1.0 / 480, 1.0 / 60, 1, 60, 600}

// RateClasses has the share of functions in each rate class; they add up to 1.
type RateClasses [len(rateBounds) - 1]float64

func rateClass(perMinute float64) int {
	class := 0
	for class < len(RateClasses{})-1 && perMinute >= rateBounds[class+1] {
		class++
	}
	return class
}

// Stats describes a trace.
type Stats struct {
	Functions int   `json:"functions"`
	Minutes   int   `json:"minutes"`
	Timers    Group `json:"timers"` // called by a clock
	Others    Group `json:"others"` // called by events
	// Middle and Tail say how the durations of a function's calls differ: the
	// ratios of the 75th to the 25th percentile and of the 99th to the 50th, less
	// 1, with 1 ms added to each percentile.
	Middle Quantiles `json:"duration_p75_to_p25_less_1"`
	Tail   Quantiles `json:"duration_p99_to_p50_less_1"`
	// MemoryMB covers the functions whose memory is known.
	MemoryMB Quantiles `json:"memory_mb"`
}

// Group describes the functions that are called in one way.
type Group struct {
	Share float64     `json:"share_of_functions"`
	Rates RateClasses `json:"rate_classes"`
	// Dispersion is the variance of a function's calls per minute divided by their
	// mean, for functions called at least once in ten minutes: 0 for a clock, 1
	// for independent calls, more for calls that come in bursts.
	Dispersion Quantiles `json:"dispersion"`
	MedianMS   Quantiles `json:"median_ms"` // of a function's durations
}

// Measure computes a trace's statistics.
func Measure(t Trace) Stats {
	s := Stats{Functions: len(t.Functions), Minutes: t.Minutes}
	var timers, others []Function
	var middle, tail, memory []float64
	for _, f := range t.Functions {
		if f.Trigger == TriggerTimer {
			timers = append(timers, f)
		} else {
			others = append(others, f)
		}
		middle = append(middle, (f.Durations[4]+1)/(f.Durations[2]+1)-1)
		tail = append(tail, (f.Durations[5]+1)/(f.Durations[3]+1)-1)
		if f.MemoryMB > 0 {
			memory = append(memory, f.MemoryMB)
		}
	}
	s.Timers, s.Others = measureGroup(timers, t), measureGroup(others, t)
	s.Middle, s.Tail, s.MemoryMB = quantilesOf(middle), quantilesOf(tail), quantilesOf(memory)
	return s
}

func measureGroup(functions []Function, t Trace) Group {
	var g Group
	if len(functions) == 0 {
		return g
	}
	g.Share = float64(len(functions)) / float64(len(t.Functions))
	var dispersion, medians []float64
	for _, f := range functions {
		mean := float64(f.total(0, t.Minutes)) / float64(t.Minutes)
		g.Rates[rateClass(mean)] += 1 / float64(len(functions))
		if mean >= 0.1 {
			variance := 0.0
			for _, n := range f.PerMinute {
				variance += (float64(n) - mean) * (float64(n) - mean) / float64(t.Minutes)
			}
			dispersion = append(dispersion, variance/mean)
		}
		medians = append(medians, f.Durations[3])
	}
	g.Dispersion, g.MedianMS = quantilesOf(dispersion), quantilesOf(medians)
	return g
}
