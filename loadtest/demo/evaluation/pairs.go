package evaluation

import (
	"math"

	"libra.dev/libra/loadtest/demo/report"
)

// Pair is a function with one of its inputs under a policy, against stock.
type Pair struct {
	Function      string
	Input         int
	Stock, Policy float64 // milliseconds, medians over all runs, and repeats in a run
	Harvested     bool
}

// Slowdown is by how much longer the pair takes than in stock, as a fraction.
func (p Pair) Slowdown() float64 { return p.Policy/p.Stock - 1 }

// Speedup is equation 1 of section 8.1 of the paper: (stock - policy) / stock.
func (p Pair) Speedup() float64 { return 1 - p.Policy/p.Stock }

// pairs are those that both stock and the policy answered, in the order of the schedule.
func (d Data) pairs(policy, workload string) []Pair {
	stock, order := d.times(Stock, workload)
	times, _ := d.times(policy, workload)
	harvested := d.harvested(policy, workload)
	var pairs []Pair
	for _, key := range order {
		if len(times[key]) > 0 {
			pairs = append(pairs, Pair{key.function, key.input, median(stock[key]), median(times[key]), harvested[key]})
		}
	}
	return pairs
}

// times are the response times of each function and input, and these in their order.
func (d Data) times(policy, workload string) (map[input][]float64, []input) {
	times := map[input][]float64{}
	var order []input
	for _, run := range d.runs(policy, workload) {
		for _, r := range run.Results {
			key := input{workload, r.Function, r.Input}
			if r.Error != "" {
				continue
			}
			if times[key] == nil {
				order = append(order, key)
			}
			times[key] = append(times[key], r.DurationMS)
		}
	}
	return times, order
}

// harvested are the functions and inputs that lent anything in any run of the policy. A
// policy that nothing is recorded of is held against those that Libra harvested.
func (d Data) harvested(policy, workload string) map[input]bool {
	recorded := false
	harvested := map[input]bool{}
	for _, run := range d.runs(policy, workload) {
		recorded = recorded || len(run.Outcomes) > 0
		for _, r := range run.Results {
			if o, ok := run.Outcomes[r.RequestID]; ok && !o.Lent.IsZero() {
				harvested[input{workload, r.Function, r.Input}] = true
			}
		}
	}
	if !recorded && policy != Libra {
		return d.harvested(Libra, workload)
	}
	return harvested
}

// slowdowns are the 99th percentile and the worst of the harvested pairs.
func slowdowns(pairs []Pair) (p99, worst float64) {
	var values []float64
	for _, p := range pairs {
		if p.Harvested && !math.IsInf(p.Slowdown(), 0) {
			values = append(values, p.Slowdown())
		}
	}
	return report.Percentile(values, 99), report.Percentile(values, 100)
}

// speedups are those of all pairs.
func speedups(pairs []Pair) []float64 {
	values := make([]float64, 0, len(pairs))
	for _, p := range pairs {
		values = append(values, p.Speedup())
	}
	return numbers(values)
}
