package evaluation

import (
	"cmp"
	"math"
	"slices"
	"time"

	"libra.dev/libra/loadtest/demo/report"
)

// Workloads, in the order of the report. Section 8.7 of the paper calls the first the
// hybrid one.
const (
	Mixed     = "mixed"
	Related   = "related"
	Unrelated = "unrelated"
)

// Comparison is what Compare makes of Data. A figure that cannot be worked out is NaN.
type Comparison struct {
	Rounds    int
	Workloads []string // those that were run
	Versus    []Versus // of every workload and every policy in it but stock
	Latencies []Row
	Overheads []Overhead
	Stages    []Stage // of Libra: the counts added up, the percentiles medians over its runs
	Outside   []Outside
	Moved     []Moved
	Timelines []Timeline
	Noise     map[string]Noise // by workload
	Findings  []string         // where the paper's results, or what Libra promises, did not show
	Failures  []Failure
	Late      int        // requests of all runs that were sent late
	Agreement *Agreement // nil when there is no other evaluation to compare with
}

// Versus is a policy against stock in a workload.
type Versus struct {
	Policy, Workload string
	// Rounds are those that both were run in.
	Rounds []Round
	// P50, P99 and Completion are over the rounds of the policy's figure / stock's in the
	// same round: a percentile of the response times of all answered requests, and the
	// time from the first request sent to the last answer.
	P50, P99, Completion Spread
	// Pairs are all functions with an input that both answered.
	Pairs []Pair
	// Slowdown is of the harvested pairs.
	SlowdownP99, SlowdownWorst float64
	// InFlight and OverTime are the utilisation / stock's, each the median over rounds.
	InFlight, OverTime Utilisation
}

// Round is what a round gave: the ratios to stock in the same round.
type Round struct {
	Round                int
	Latency              report.Latency // milliseconds
	P50, P99, Completion float64
	InFlight             Utilisation // itself, not against stock
}

// Spread sums up a figure that there is one of for each round.
type Spread struct{ Median, Least, Most float64 }

// Row is a line of the table of response times, in milliseconds: medians over the rounds.
type Row struct {
	Workload, Policy string
	Function         string // empty: all of them
	Latency          report.Latency
	Ratio            report.Latency // to stock in the same round
}

// Compare works out all figures.
func Compare(d Data) Comparison {
	c := Comparison{Workloads: d.workloads(), Failures: failures(d)}
	rounds := map[int]bool{}
	for _, run := range d.Runs {
		rounds[run.Round] = true
		for _, r := range run.Results {
			if r.LateMS > report.LateMS {
				c.Late++
			}
		}
	}
	c.Rounds = len(rounds)
	for _, w := range c.Workloads {
		for _, p := range d.policies(w) {
			if p != Stock {
				c.Versus = append(c.Versus, d.versus(p, w))
			}
			c.Latencies = append(c.Latencies, d.row(p, w, ""))
			for _, f := range d.Functions {
				if row := d.row(p, w, f.Name); !math.IsNaN(row.Latency.P50) {
					c.Latencies = append(c.Latencies, row)
				}
			}
		}
	}
	c.Overheads = d.overheads()
	c.Stages = d.stages()
	c.Outside = d.outside()
	c.Moved = d.moved()
	c.Timelines = d.timelines()
	c.Noise = map[string]Noise{}
	for _, w := range c.Workloads {
		c.Noise[w] = d.noise(c, w)
	}
	c.Findings = d.findings(c)
	return c
}

// of is the policy in the workload; all of its figures are NaN if it was not run.
func (c Comparison) of(policy, workload string) Versus {
	for _, v := range c.Versus {
		if v.Policy == policy && v.Workload == workload {
			return v
		}
	}
	return Data{}.versus(policy, workload)
}

func (d Data) versus(policy, workload string) Versus {
	v := Versus{Policy: policy, Workload: workload}
	var p50, p99, completion []float64
	var mine, stocks []Utilisation
	var mineOverTime, stocksOverTime []Utilisation
	for _, run := range d.runs(policy, workload) {
		stock, ok := d.run(Stock, workload, run.Round)
		if !ok {
			continue
		}
		latency := report.LatencyOf(run.milliseconds(""))
		ratio := latency.Over(report.LatencyOf(stock.milliseconds("")))
		r := Round{
			Round: run.Round, Latency: latency, P50: ratio.P50, P99: ratio.P99,
			Completion: run.completion() / stock.completion(),
			InFlight:   run.inFlight(d.Functions),
		}
		v.Rounds = append(v.Rounds, r)
		p50, p99, completion = append(p50, r.P50), append(p99, r.P99), append(completion, r.Completion)
		mine, stocks = append(mine, r.InFlight), append(stocks, stock.inFlight(d.Functions))
		mineOverTime = append(mineOverTime, mean(run.overTime(d.Functions)))
		stocksOverTime = append(stocksOverTime, mean(stock.overTime(d.Functions)))
	}
	v.P50, v.P99, v.Completion = spreadOf(p50), spreadOf(p99), spreadOf(completion)
	v.InFlight = medianUtilisation(mine).over(medianUtilisation(stocks))
	v.OverTime = medianUtilisation(mineOverTime).over(medianUtilisation(stocksOverTime))
	v.Pairs = d.pairs(policy, workload)
	v.SlowdownP99, v.SlowdownWorst = slowdowns(v.Pairs)
	return v
}

func (d Data) row(policy, workload, function string) Row {
	row := Row{Workload: workload, Policy: policy, Function: function}
	var own, ratios []report.Latency
	for _, run := range d.runs(policy, workload) {
		l := report.LatencyOf(run.milliseconds(function))
		own = append(own, l)
		if stock, ok := d.run(Stock, workload, run.Round); ok {
			ratios = append(ratios, l.Over(report.LatencyOf(stock.milliseconds(function))))
		}
	}
	row.Latency, row.Ratio = medianLatency(own), medianLatency(ratios)
	return row
}

// workloads are those with runs, the known ones first.
func (d Data) workloads() []string {
	var names []string
	for _, run := range d.Runs {
		if !slices.Contains(names, run.Workload) {
			names = append(names, run.Workload)
		}
	}
	known := []string{Mixed, Related, Unrelated}
	place := func(name string) int {
		if i := slices.Index(known, name); i >= 0 {
			return i
		}
		return len(known)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	return names
}

// policies are those with runs of the workload, in the order of d.Policies.
func (d Data) policies(workload string) []string {
	var names []string
	add := func(name string) {
		if len(d.runs(name, workload)) > 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, p := range d.Policies {
		add(p.Name)
	}
	for _, run := range d.Runs {
		add(run.Policy)
	}
	return names
}

// title is what a policy is called in the text.
func (d Data) title(policy string) string {
	for _, p := range d.Policies {
		if p.Name == policy && p.Title != "" {
			return p.Title
		}
	}
	return policy
}

func (d Data) runs(policy, workload string) []Run {
	var runs []Run
	for _, run := range d.Runs {
		if run.Policy == policy && run.Workload == workload {
			runs = append(runs, run)
		}
	}
	return runs
}

func (d Data) run(policy, workload string, round int) (Run, bool) {
	for _, run := range d.runs(policy, workload) {
		if run.Round == round {
			return run, true
		}
	}
	return Run{}, false
}

// milliseconds are the response times of the answered requests, of one function or of all.
func (r Run) milliseconds(function string) []float64 {
	var durations []float64
	for _, result := range r.Results {
		if result.Error == "" && (function == "" || result.Function == function) {
			durations = append(durations, result.DurationMS)
		}
	}
	return durations
}

// completion is the time from the first request sent to the last answer, in seconds. It is
// NaN without an answer.
func (r Run) completion() float64 {
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for _, result := range r.Results {
		sent, over := result.Span()
		first = min(first, sent)
		if result.Error == "" {
			last = max(last, over)
		}
	}
	if last < first {
		return math.NaN()
	}
	return time.Duration(last - first).Seconds()
}

// median is the middle value, or the mean of the two in the middle. It is NaN of none.
// Values that are no numbers do not count.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(numbers(values)))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func numbers(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

func spreadOf(values []float64) Spread {
	values = numbers(values)
	if len(values) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	return Spread{Median: median(values), Least: slices.Min(values), Most: slices.Max(values)}
}

func medianLatency(latencies []report.Latency) report.Latency {
	return report.Latency{
		P50:   medianOf(latencies, func(l report.Latency) float64 { return l.P50 }),
		P99:   medianOf(latencies, func(l report.Latency) float64 { return l.P99 }),
		Worst: medianOf(latencies, func(l report.Latency) float64 { return l.Worst }),
	}
}

func medianOf[T any](items []T, value func(T) float64) float64 {
	values := make([]float64, 0, len(items))
	for _, item := range items {
		values = append(values, value(item))
	}
	return median(values)
}
