// Package report compares the demo's runs: as a table, as a page with plots,
// and as numbers for machines.
package report

import (
	"fmt"
	"math"
	"slices"
	"time"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/pkg/api"
)

// lateMS is by how much a request may miss its time before it counts as late.
const lateMS = 50

// Result is what became of one request of a run, as the k6 script writes it.
type Result struct {
	N          int     `json:"n"` // its place in the schedule
	Function   string  `json:"function"`
	Size       int64   `json:"size"`       // of the body, in bytes
	RequestID  string  `json:"request_id"` // as the function saw it
	Status     int     `json:"status"`
	DurationMS float64 `json:"duration_ms"` // from the first byte sent to the last received
	SentMS     int64   `json:"sent_ms"`     // since the epoch
	LateMS     float64 `json:"late_ms"`
	Answer     string  `json:"answer"` // what the function said it did
	Error      string  `json:"error"`  // empty when the answer was right
}

// Run is one replay of a schedule.
type Run struct {
	Name     string
	Schedule []schedule.Request
	Results  []Result
}

// Outcome is what an invocation lent and borrowed.
type Outcome struct {
	Lent, Borrowed api.Resources
}

// LimitChange is a new CPU limit of a function's pod.
type LimitChange struct {
	At       time.Time
	Function string
	CPUMilli int64
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

	Restarts int // of containers, from the first run to the last
	Elapsed  time.Duration
}

// Comparison is what Compare makes of Data.
type Comparison struct {
	Functions []Row
	Overall   Row // of all functions that opted in
	Plain     Row // of the service that did not
	Slowdown  Slowdown
	// SlowdownAgain is the worst slow-down of the same requests, had the second
	// stock run been Libra: what noise alone makes of it.
	SlowdownAgain Slowdown
	Failures      []Failure
	Late          int // requests of all runs that were sent late
}

// Row is a line of the table. The latencies are of the answered requests.
type Row struct {
	Name                string
	Requests, Failed    int // of a run, and of the three runs
	Stock, Again, Libra Latency
	// Observed is how many invocations of the run with Libra are on record, and
	// of these, how many lent and how many borrowed anything.
	Observed, Harvested, Accelerated int
	Resizes                          int
}

// Slowdown is how much longer a request took than it does without Libra, as a
// fraction: its response time / base - 1. The base is the median of the
// response times of the same request (the same function and input, in the same
// place of the schedule) in the stock runs: with two runs, their mean.
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
			if r.LateMS > lateMS {
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
		Stock: latencyOf(d.Stock.milliseconds(functions...)),
		Again: latencyOf(d.Again.milliseconds(functions...)),
		Libra: latencyOf(d.Libra.milliseconds(functions...)),
	}
	for _, q := range d.Libra.Schedule {
		if slices.Contains(functions, q.Function) {
			row.Requests++
		}
	}
	for _, f := range failures {
		if f.Run != d.Learn.Name && slices.Contains(functions, f.Function) {
			row.Failed++
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
		row.Resizes += d.resizes(f)
	}
	return row
}

// resizes counts how often a function's limit changed. The first is as it was
// when the run began.
func (d Data) resizes(function string) int {
	seen := 0
	for _, l := range d.Limits {
		if l.Function == function {
			seen++
		}
	}
	return max(0, seen-1)
}

// slowdowns are the worst of a harvested request, with Libra and by noise alone.
func (d Data) slowdowns() (libra, again Slowdown) {
	libra, again = Slowdown{Fraction: math.NaN()}, Slowdown{Fraction: math.NaN()}
	first, second := d.Stock.byN(), d.Again.byN()
	for _, r := range d.Libra.Results {
		if o := d.Outcomes[r.RequestID]; o.Lent.IsZero() || r.Error != "" {
			continue
		}
		a, okA := first[r.N]
		b, okB := second[r.N]
		if !okA || !okB || a.Error != "" || b.Error != "" {
			continue
		}
		base := (a.DurationMS + b.DurationMS) / 2
		libra = libra.worse(Slowdown{r.DurationMS/base - 1, r.Function, r.N})
		again = again.worse(Slowdown{b.DurationMS/a.DurationMS - 1, r.Function, r.N})
	}
	return libra, again
}

func (s Slowdown) worse(o Slowdown) Slowdown {
	if math.IsNaN(s.Fraction) || o.Fraction > s.Fraction {
		return o
	}
	return s
}

// share is part / all, NaN of nothing.
func share(part, all int) float64 { return float64(part) / float64(all) }
