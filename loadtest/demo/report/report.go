// Package report compares the demo's runs: as a table, and as numbers for machines.
package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/pkg/api"
)

// LateMS is by how many milliseconds a request may miss its time before it counts as late.
const LateMS = 50

// Result is what became of one request of a run, as the k6 script writes it.
type Result struct {
	N          int     `json:"n"` // its place in the schedule
	Function   string  `json:"function"`
	SizeClass  string  `json:"size_class"`
	Input      int     `json:"input"`      // the number of its input, among the function's
	Size       int64   `json:"size"`       // of the body, in bytes
	RequestID  string  `json:"request_id"` // as the function saw it
	Status     int     `json:"status"`
	DurationMS float64 `json:"duration_ms"` // from the first byte sent to the last received
	SentMS     int64   `json:"sent_ms"`     // since the epoch
	LateMS     float64 `json:"late_ms"`
	Answer     string  `json:"answer"` // what the function said it did
	Error      string  `json:"error"`  // empty when the answer was right
}

// Span is when the request was sent and when it was over, in nanoseconds since the epoch.
func (r Result) Span() (from, to int64) {
	from = r.SentMS * int64(time.Millisecond)
	return from, from + int64(r.DurationMS*float64(time.Millisecond))
}

// Run is one replay of a schedule.
type Run struct {
	Name     string
	Schedule []schedule.Request
	Results  []Result
}

// Outcome is what Libra recorded of an invocation.
type Outcome struct {
	Lent, Borrowed api.Resources // at most, while it ran
	Predicted      api.Resources // zero when there was no prediction
	Peak           api.Resources
	Limit          api.Resources // the least in force while it ran; zero where there was none
	Duration       time.Duration // in the pod
	ThrottledShare float64       // of the duration, 0 to 1
	Safeguarded    bool
}

// LimitChange is a new limit of a function's pod, or its first.
type LimitChange struct {
	At            time.Time
	Function, Pod string
	Limit         api.Resources
}

// Data is everything that the demo measured. Stock, Again (stock once more, so
// that the noise shows) and Libra replay the same schedule; Learn another.
type Data struct {
	Machine, Commit            string
	Seed                       uint64
	Stock, Again, Learn, Libra Run

	// Of the run with Libra: what each invocation lent and borrowed, by request
	// ID, and the limits of the functions' pods, first as they were before it.
	Outcomes map[string]Outcome
	Limits   []LimitChange
	// StockLimits are those of the two stock runs, in which none must change.
	StockLimits []LimitChange
	// Writes is how many limits the node agents wrote to cgroups in the run with Libra.
	// Only those that stand for a while are in Limits, too.
	Writes int

	Restarts int // of containers, from the first run to the last
	Elapsed  time.Duration
}

// Comparison is what Compare makes of Data.
type Comparison struct {
	Functions []Row
	Overall   Row // of all functions that opted in
	Plain     Row // of the service that did not
	Slowdown  Slowdown
	// SlowdownAgain is the worst slow-down of the same requests in the second
	// stock run: what noise alone makes of it.
	SlowdownAgain Slowdown
	Failures      []Failure
	Late          int // requests of all runs that were sent late
	StockResizes  int // in the stock runs: there should be none
}

// Row is a line of the table. The latencies are of the answered requests.
type Row struct {
	Name                     string
	Requests                 int // of one run
	FailedStock, FailedLibra int // of the run named so
	Stock, Again, Libra      Latency
	// Observed is how many invocations of the run with Libra are on record, and
	// of these, how many lent and how many borrowed anything.
	Observed, Harvested, Accelerated int
	Resizes                          int
}

// Slowdown is how much longer a request took than the same request (the same
// function and input, in the same place of the schedule) in the first stock run,
// as a fraction: response time / response time in stock - 1. So it is for Libra's
// run and for the second stock run alike.
type Slowdown struct {
	Fraction float64 // NaN when there is no such request
	Function string
	N        int // the request's place in the schedule
}

// Failure is a request that was not answered, or not rightly.
type Failure struct {
	Run, Function string
	N             int
	Error         string
}

// Compare works the table out.
func Compare(d Data) Comparison {
	var c Comparison
	for _, run := range []Run{d.Stock, d.Again, d.Learn, d.Libra} {
		c.Failures = append(c.Failures, run.failures()...)
		for _, r := range run.Results {
			if r.LateMS > LateMS {
				c.Late++
			}
		}
	}
	// Every run gives the same answer to the same request.
	for _, run := range []Run{d.Again, d.Libra} {
		c.Failures = append(c.Failures, run.differences(d.Stock)...)
	}
	for _, f := range schedule.Functions {
		c.Functions = append(c.Functions, d.row(f, c.Failures, f))
	}
	c.Overall = d.row("all four", c.Failures, schedule.Functions...)
	c.Plain = d.row(schedule.Plain, c.Failures, schedule.Plain)
	c.Slowdown, c.SlowdownAgain = d.slowdowns()
	for _, f := range schedule.All {
		c.StockResizes += resizes(d.StockLimits, f)
	}
	return c
}

// failures are the requests without a right answer.
func (r Run) failures() []Failure {
	results := r.byN()
	var failures []Failure
	for _, q := range r.Schedule {
		result, ok := results[q.N]
		if !ok {
			result.Error = "it was never sent, or nothing is known of it"
		}
		if result.Error != "" {
			failures = append(failures, Failure{r.Name, q.Function, q.N, result.Error})
		}
	}
	return failures
}

// differences are the right answers that are not those of the other run.
func (r Run) differences(other Run) []Failure {
	results, others := r.byN(), other.byN()
	var failures []Failure
	for _, q := range r.Schedule {
		result, ok := results[q.N]
		before, okBefore := others[q.N]
		if ok && okBefore && result.Error == "" && before.Error == "" && result.Answer != before.Answer {
			failures = append(failures, Failure{r.Name, q.Function, q.N,
				fmt.Sprintf("the answer is %s; in run %s it was %s", result.Answer, other.Name, before.Answer)})
		}
	}
	return failures
}

func (r Run) byN() map[int]Result {
	results := make(map[int]Result, len(r.Results))
	for _, result := range r.Results {
		results[result.N] = result
	}
	return results
}

// milliseconds are the response times of the answered requests of functions.
func (r Run) milliseconds(functions ...string) []float64 {
	var durations []float64
	for _, result := range r.Results {
		if result.Error == "" && slices.Contains(functions, result.Function) {
			durations = append(durations, result.DurationMS)
		}
	}
	return durations
}

func (d Data) row(name string, failures []Failure, functions ...string) Row {
	row := Row{
		Name:  name,
		Stock: LatencyOf(d.Stock.milliseconds(functions...)),
		Again: LatencyOf(d.Again.milliseconds(functions...)),
		Libra: LatencyOf(d.Libra.milliseconds(functions...)),
	}
	for _, q := range d.Libra.Schedule {
		if slices.Contains(functions, q.Function) {
			row.Requests++
		}
	}
	for _, f := range failures {
		switch {
		case !slices.Contains(functions, f.Function):
		case f.Run == d.Stock.Name:
			row.FailedStock++
		case f.Run == d.Libra.Name:
			row.FailedLibra++
		}
	}
	for _, r := range d.Libra.Results {
		o, ok := d.Outcomes[r.RequestID]
		if !ok || !slices.Contains(functions, r.Function) {
			continue
		}
		row.Observed++
		if !o.Lent.IsZero() {
			row.Harvested++
		}
		if !o.Borrowed.IsZero() {
			row.Accelerated++
		}
	}
	for _, f := range functions {
		row.Resizes += resizes(d.Limits, f)
	}
	return row
}

// resizes counts how often the limits of a function's pods changed. The first of
// each pod is as it was when the run began.
func resizes(limits []LimitChange, function string) int {
	n, seen := 0, map[string]bool{}
	for _, l := range limits {
		if l.Function != function {
			continue
		}
		if seen[l.Pod] {
			n++
		}
		seen[l.Pod] = true
	}
	return n
}

// slowdowns are the worst of a harvested request, with Libra and by noise alone.
func (d Data) slowdowns() (libra, again Slowdown) {
	libra, again = Slowdown{Fraction: math.NaN()}, Slowdown{Fraction: math.NaN()}
	first, second := d.Stock.byN(), d.Again.byN()
	for _, r := range d.Libra.Results {
		if r.Error != "" || !d.victim(r) {
			continue
		}
		a, okA := first[r.N]
		b, okB := second[r.N]
		if !okA || !okB || a.Error != "" || b.Error != "" {
			continue
		}
		libra = libra.worse(Slowdown{r.DurationMS/a.DurationMS - 1, r.Function, r.N})
		again = again.worse(Slowdown{b.DurationMS/a.DurationMS - 1, r.Function, r.N})
	}
	return libra, again
}

// victim says whether harvesting may have slowed a request down: it lent, or at
// any time of it a pod of its function was below the limit that it had first,
// because of an invocation before it or one that is not on record.
func (d Data) victim(r Result) bool {
	if o := d.Outcomes[r.RequestID]; !o.Lent.IsZero() || o.Limit.CPUMilli > 0 && o.Limit.CPUMilli < d.own(r.Function).CPUMilli {
		return true
	}
	from := time.UnixMilli(r.SentMS)
	to := from.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
	first, below := map[string]api.Resources{}, map[string]bool{} // by pod
	for _, l := range d.Limits {
		if l.Function != r.Function {
			continue
		}
		if l.At.After(to) {
			break
		}
		if below[l.Pod] && l.At.After(from) {
			return true
		}
		if _, ok := first[l.Pod]; !ok {
			first[l.Pod] = l.Limit
		}
		below[l.Pod] = l.Limit.Min(first[l.Pod]) != first[l.Pod]
	}
	return slices.Contains(slices.Collect(maps.Values(below)), true)
}

// own is the limit that the function's pods had before the run with Libra.
func (d Data) own(function string) api.Resources {
	for _, l := range d.Limits {
		if l.Function == function {
			return l.Limit
		}
	}
	return api.Resources{}
}

func (s Slowdown) worse(o Slowdown) Slowdown {
	if math.IsNaN(s.Fraction) || o.Fraction > s.Fraction {
		return o
	}
	return s
}

// share is part / all, NaN of nothing.
func share(part, all int) float64 { return float64(part) / float64(all) }
