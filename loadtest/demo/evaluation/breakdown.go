package evaluation

import (
	"cmp"
	"math"
	"slices"
	"time"

	"libra.dev/libra/loadtest/demo/report"
)

// PartActivator is the part that stock has, too: Libra's overhead in it is the difference.
const PartActivator = "activator"

// Overhead is what a part of Libra costs while functions are called.
type Overhead struct {
	Part  string
	Cores float64
	MiB   float64
}

// Outside is how the response times of a function split into what the pod took and what
// is outside it: gateway, activator and waiting for the pod. It is of Libra's runs.
type Outside struct {
	Workload, Function string // Function is empty for all of them
	Facts
	P50, P99 float64 // of a request's time outside the pod, milliseconds
}

// Facts are what is on record of some requests. Shares are from 0 to 1, NaN of nothing.
type Facts struct {
	Requests  int
	Observed  int     // of which Libra has a record
	Outside   float64 // the share of their response times that was outside the pod
	Throttled float64 // the share of their time in the pod that they were throttled
	Queued    float64 // the share that was sent when an earlier one of the function was in flight
	Others    float64 // mean cores that the other functions used while they were in flight
}

// Kinds of invocations, as in figure 8 of the paper.
const (
	Default     = "default"
	Accelerated = "accelerated"
	Harvested   = "harvested"
	Safeguarded = "safeguarded"
)

// Kinds are all kinds, in the paper's order.
var Kinds = []string{Default, Accelerated, Harvested, Safeguarded}

// Moved is what was reassigned to an invocation (above zero) or from it (below).
type Moved struct {
	Policy, Workload        string
	CPUKind, MemoryKind     string
	CoreSeconds, MiBSeconds float64 // the most at any time, multiplied by the time in the pod
	Speedup                 float64 // against the median of the same function and input in stock
}

// observed is an answered request that Libra has a record of.
type observed struct {
	Result
	Outcome
}

func (o observed) outsideMS() float64 {
	return o.Result.DurationMS - float64(o.Outcome.Duration)/float64(time.Millisecond)
}

// overheads are medians over Libra's runs of the mixed workload, or of all when it was
// not run.
func (d Data) overheads() []Overhead {
	cores, memory := map[string][]float64{}, map[string][]float64{}
	for _, run := range d.Runs {
		if run.Policy != Libra || run.Workload != Mixed && len(d.runs(Libra, Mixed)) > 0 {
			continue
		}
		for name, part := range run.Parts {
			if name == PartActivator {
				stock, _ := d.run(Stock, run.Workload, run.Round)
				other, ok := stock.Parts[name]
				if !ok {
					continue
				}
				part = Part{Cores: part.Cores - other.Cores, Memory: part.Memory - other.Memory}
			}
			cores[name] = append(cores[name], part.Cores)
			memory[name] = append(memory[name], float64(part.Memory)/(1<<20))
		}
	}
	var overheads []Overhead
	for name := range cores {
		overheads = append(overheads, Overhead{Part: name, Cores: median(cores[name]), MiB: median(memory[name])})
	}
	slices.SortFunc(overheads, func(a, b Overhead) int { return cmp.Compare(a.Part, b.Part) })
	return overheads
}

// stages sum up the steps of Libra's in all of its runs, in the order of the first.
func (d Data) stages() []Stage {
	var order []string
	byName := map[string][]Stage{}
	for _, run := range d.Runs {
		if run.Policy != Libra {
			continue
		}
		for _, s := range run.Stages {
			if byName[s.Name] == nil {
				order = append(order, s.Name)
			}
			byName[s.Name] = append(byName[s.Name], s)
		}
	}
	var stages []Stage
	for _, name := range order {
		sum := Stage{
			Name: name,
			P50:  medianOf(byName[name], func(s Stage) float64 { return s.P50 }),
			P99:  medianOf(byName[name], func(s Stage) float64 { return s.P99 }),
		}
		for _, s := range byName[name] {
			sum.Count += s.Count
		}
		stages = append(stages, sum)
	}
	return stages
}

// outside is of Libra in each workload, of all functions and of each.
func (d Data) outside() []Outside {
	var rows []Outside
	for _, w := range d.workloads() {
		for _, f := range append([]Function{{}}, d.Functions...) {
			of := func(_ Run, r Result) bool { return f.Name == "" || r.Function == f.Name }
			var ms []float64
			for _, run := range d.runs(Libra, w) {
				for _, o := range run.observed(of) {
					ms = append(ms, o.outsideMS())
				}
			}
			if len(ms) > 0 {
				rows = append(rows, Outside{
					Workload: w, Function: f.Name, Facts: d.facts(Libra, w, of),
					P50: report.Percentile(ms, 50), P99: report.Percentile(ms, 99),
				})
			}
		}
	}
	return rows
}

func (r Run) observed(of func(Run, Result) bool) []observed {
	var found []observed
	for _, result := range r.Results {
		if o, ok := r.Outcomes[result.RequestID]; ok && result.Error == "" && of(r, result) {
			found = append(found, observed{result, o})
		}
	}
	return found
}

// facts are of the answered requests of the policy's runs that of picks.
func (d Data) facts(policy, workload string, of func(Run, Result) bool) Facts {
	var f Facts
	var queued, response, outside, inPod, throttled, inFlight, others float64
	for _, run := range d.runs(policy, workload) {
		waits := run.queued()
		for _, r := range run.Results {
			if r.Error != "" || !of(run, r) {
				continue
			}
			f.Requests++
			if waits[r.N] {
				queued++
			}
			seconds, used := run.others(r)
			inFlight += seconds
			others += used
		}
		for _, o := range run.observed(of) {
			f.Observed++
			response += o.Result.DurationMS
			outside += o.outsideMS()
			inPod += o.Outcome.Duration.Seconds()
			throttled += o.Outcome.Duration.Seconds() * o.ThrottledShare
		}
	}
	f.Outside, f.Throttled, f.Queued = outside/response, throttled/inPod, queued/float64(f.Requests)
	f.Others = others / inFlight
	return f
}

// others is for how many seconds of a request there are samples, and the core-seconds
// that the other functions used in them.
func (r Run) others(result Result) (seconds, used float64) {
	from, to := result.Span()
	// Of samples in their order, those from the last before the request on.
	first, _ := slices.BinarySearchFunc(r.Samples, from, func(s Sample, at int64) int { return cmp.Compare(s.At.UnixNano(), at) })
	for i := max(first, 1); i < len(r.Samples) && r.Samples[i-1].At.UnixNano() < to; i++ {
		before, after := r.Samples[i-1], r.Samples[i]
		span := interval{before.At.UnixNano(), after.At.UnixNano()}
		share := span.within([]interval{{from, to}}) / after.At.Sub(before.At).Seconds()
		seconds += share * after.At.Sub(before.At).Seconds()
		for name, u := range after.Functions {
			if earlier, ok := before.Functions[name]; ok && name != result.Function {
				used += share * u.usedSince(earlier)
			}
		}
	}
	return seconds, used
}

// queued are the requests that were sent when an earlier one of their function was in
// flight.
func (r Run) queued() map[int]bool {
	queued := map[int]bool{}
	until := map[string]int64{}
	for _, result := range slices.SortedStableFunc(slices.Values(r.Results), func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.SentMS, b.SentMS), cmp.Compare(a.N, b.N))
	}) {
		sent, over := result.Span()
		queued[result.N] = sent < until[result.Function]
		until[result.Function] = max(until[result.Function], over)
	}
	return queued
}

// moved is of every invocation on record that stock answered, too.
func (d Data) moved() []Moved {
	var points []Moved
	for _, w := range d.workloads() {
		stock, _ := d.times(Stock, w)
		for _, p := range d.policies(w) {
			for _, run := range d.runs(p, w) {
				for _, o := range run.observed(func(Run, Result) bool { return true }) {
					seconds := o.Outcome.Duration.Seconds()
					before := median(stock[input{w, o.Function, o.Input}])
					if math.IsNaN(before) || before == 0 {
						continue
					}
					points = append(points, Moved{
						Policy: p, Workload: w,
						CPUKind:     kind(o.Safeguarded, o.Lent.CPUMilli, o.Borrowed.CPUMilli),
						MemoryKind:  kind(o.Safeguarded, o.Lent.MemoryBytes, o.Borrowed.MemoryBytes),
						CoreSeconds: float64(o.Borrowed.CPUMilli-o.Lent.CPUMilli) / 1000 * seconds,
						MiBSeconds:  float64(o.Borrowed.MemoryBytes-o.Lent.MemoryBytes) / (1 << 20) * seconds,
						Speedup:     1 - o.Result.DurationMS/before,
					})
				}
			}
		}
	}
	return points
}

func kind(safeguarded bool, lent, borrowed int64) string {
	switch {
	case safeguarded:
		return Safeguarded
	case borrowed > 0:
		return Accelerated
	case lent > 0:
		return Harvested
	default:
		return Default
	}
}
