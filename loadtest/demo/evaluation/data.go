// Package evaluation compares policies of giving out CPU and memory to functions, as
// section 8.3 of the LIBRA paper does, and writes what came out as a page, as Markdown and
// as numbers for machines.
package evaluation

import (
	"time"

	"libra.dev/libra/loadtest/demo/report"
	"libra.dev/libra/pkg/api"
)

// Names of policies that the comparison knows by their meaning.
const (
	Stock = "stock" // what all others are compared with
	Again = "again" // stock once more: the noise
	Libra = "libra"
)

// Policy is a way to give out CPU and memory.
type Policy struct {
	Name  string // as in the names of the metrics
	Title string // as in the plots and tables
	About string // what it is, in a sentence
}

// Function is one of the functions that were called.
type Function struct {
	Name    string
	Related bool          // its demand follows the size of its input
	Limit   api.Resources // its user allocation
}

// Result is what became of one request of a run, and Outcome what Libra recorded of it.
type (
	Result  = report.Result
	Outcome = report.Outcome
)

// Usage is what a function's containers use and may use at a moment.
type Usage struct {
	CPU    time.Duration // since the container was started
	Memory int64         // bytes that cannot be reclaimed
	Limit  api.Resources // in force; zero where there is none
}

// Sample is a look at all functions at one moment.
type Sample struct {
	At        time.Time
	Functions map[string]Usage
}

// Part is what a part of Libra, or the activator, used in a run.
type Part struct {
	Cores  float64 // mean
	Memory int64   // most bytes
}

// Stage is how long one step of Libra's took in a run, of all times that it was taken.
type Stage struct {
	Name     string  // as in the table
	Count    int64   // how often, 1 or more
	P50, P99 float64 // seconds
}

// Run is one replay of a workload's schedule under a policy.
type Run struct {
	Policy, Workload string // mixed, related or unrelated, or another load
	Round            int    // from 1
	Planned          int    // requests of the schedule
	Results          []Result
	// Outcomes are by request ID; of the policies that are not Libra's there are none.
	Outcomes map[string]Outcome
	Samples  []Sample // in the order of their times
	Parts    map[string]Part
	Stages   []Stage
	Writes   int // limits that the node agent wrote
}

// Data is everything that was measured. All runs of a workload replay the same schedule.
type Data struct {
	Machine, Commit string
	Seed            uint64
	Trace           string // where the arrivals come from
	Policies        []Policy
	Functions       []Function
	Runs            []Run // in the order in which they were made
	Learned         int   // requests that Libra had learned from before the first run
	// Alerts are the names of those of Libra's that fired meanwhile; nil when nobody watched.
	Alerts  []string
	Elapsed time.Duration
}
