package evaluation

import (
	"fmt"
	"math"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
)

const mebibyte = 1 << 20

// start is when runs of the tests begin.
var start = time.UnixMilli(1_000_000)

// twoFunctions have one core and 100 MiB, and half a core and 50 MiB.
var twoFunctions = []Function{
	{Name: "big", Related: true, Limit: api.Resources{CPUMilli: 1000, MemoryBytes: 100 * mebibyte}},
	{Name: "small", Limit: api.Resources{CPUMilli: 500, MemoryBytes: 50 * mebibyte}},
}

// run is one whose requests to big take so many milliseconds each, of inputs 0, 1, ... and
// sent a second after the other.
func run(policy, workload string, round int, ms ...float64) Run {
	r := Run{Policy: policy, Workload: workload, Round: round, Planned: len(ms)}
	for i, t := range ms {
		r.Results = append(r.Results, Result{
			N: i, Function: "big", Input: i, RequestID: fmt.Sprintf("%s-%s-%d-%d", policy, workload, round, i), Status: 200,
			DurationMS: t, SentMS: start.UnixMilli() + int64(i)*1000, Answer: fmt.Sprint("answer ", i),
		})
	}
	return r
}

// lending marks requests of a run as having lent 0.5 core.
func lending(r Run, requests ...int) Run {
	if r.Outcomes == nil {
		r.Outcomes = map[string]Outcome{}
		for _, result := range r.Results {
			r.Outcomes[result.RequestID] = Outcome{Duration: time.Duration(result.DurationMS * float64(time.Millisecond))}
		}
	}
	for _, n := range requests {
		o := r.Outcomes[r.Results[n].RequestID]
		o.Lent.CPUMilli = 500
		r.Outcomes[r.Results[n].RequestID] = o
	}
	return r
}

func dataOf(runs ...Run) Data {
	return Data{Machine: "a machine", Commit: "abc123", Seed: 7, Trace: "a trace", Functions: twoFunctions, Runs: runs}
}

// approximately is for figures that are worked out with divisions; NaN equals NaN.
func approximately(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-9*max(1, math.Abs(b))
}

// check holds the metrics against those that are wanted; NaN is of one that must be absent.
func check(t *testing.T, d Data, want map[string]float64) {
	t.Helper()
	metrics := ResultsOf(d, Compare(d)).Metrics
	for name, w := range want {
		got, ok := metrics[name]
		if !ok {
			got = math.NaN()
		}
		if !approximately(got, w) {
			t.Errorf("%s: got %v, want %v", name, got, w)
		}
	}
}
