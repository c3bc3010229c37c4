// Package trace makes load from traces: from the Azure Functions 2019 data set,
// or from a trace with its statistics that a seeded generator makes. A trace
// says how often each of many functions was called in each minute, and how long
// a call took. Plan maps its functions onto the ten of this folder and
// compresses hours into minutes. Fill gives each invocation its input. The same
// seed always makes the same schedule.
package trace

import (
	"fmt"
	"math"
	"slices"

	"libra.dev/libra/loadtest/functions/inputs"
)

// The ten functions of LIBRA's Table 1, in its order: those whose demand follows
// the size of the input, and those whose demand follows the content.
var (
	Related   = names(true)
	Unrelated = names(false)
	Mixed     = slices.Concat(Related, Unrelated)
)

func names(related bool) []string {
	var names []string
	for _, f := range inputs.Functions {
		if f.Related == related {
			names = append(names, f.Name)
		}
	}
	return names
}

// Trace has the calls of some functions in the minutes from First on.
type Trace struct {
	// First is the number of the first minute, counted from 1 at midnight.
	First     int
	Minutes   int
	Functions []Function
	// Dropped counts the functions that a loader left out, by reason.
	Dropped map[string]int
}

// Function is one function of a trace.
type Function struct {
	ID      string // owner/app/function
	Trigger string // what calls it: TriggerTimer, http, queue, …
	// PerMinute has the invocations in each of the trace's minutes.
	PerMinute []int32
	Durations Durations
	// MemoryMB is the memory that its app had allocated on average, in MB; 0
	// means unknown.
	MemoryMB float64
}

// TriggerTimer is the trigger of functions that a clock calls. All others are
// called by events.
const TriggerTimer = "timer"

func (f Function) total(from, to int) int {
	sum := 0
	for _, n := range f.PerMinute[from:to] {
		sum += int(n)
	}
	return sum
}

// Durations are percentiles of the time that a call took, in milliseconds: the
// 0th, 1st, 25th, 50th, 75th, 99th and 100th.
type Durations [7]float64

var durationRanks = [len(Durations{})]float64{0, 0.01, 0.25, 0.50, 0.75, 0.99, 1}

func (d Durations) check() error {
	if d[0] < 0 || math.IsInf(d[6], 0) || !slices.IsSorted(d[:]) || slices.ContainsFunc(d[:], math.IsNaN) {
		return fmt.Errorf("duration percentiles are %v; they must be 0 or more, finite, and must not decrease", d)
	}
	return nil
}

// At returns the duration at a rank of 0 to 1, in milliseconds. Between
// percentiles it interpolates on a logarithmic scale, as durations spread that
// way. The data set has whole milliseconds, so At adds 1 to keep 0 on that
// scale.
func (d Durations) At(rank float64) float64 {
	return math.Expm1(interpolate(durationRanks[:], func(i int) float64 { return math.Log1p(d[i]) }, rank))
}

// interpolate returns the value at x of the line through points (xs[i], y(i)).
func interpolate(xs []float64, y func(int) float64, x float64) float64 {
	x = min(max(x, xs[0]), xs[len(xs)-1])
	i, found := slices.BinarySearch(xs, x)
	if found || i == 0 {
		return y(i)
	}
	part := (x - xs[i-1]) / (xs[i] - xs[i-1])
	return y(i-1) + part*(y(i)-y(i-1))
}
