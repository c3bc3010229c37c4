package evaluation

import (
	"math"

	"libra.dev/libra/loadtest/demo/report"
)

// Noise is the slow-down, without Libra, of the pairs that Libra harvested.
type Noise struct {
	SlowdownP99 float64 // NaN when it is not known
	// OfRounds says that it is of one round of stock over its others, and so has the noise
	// of single rounds; else it is of stock again over stock, of all rounds both.
	OfRounds bool
}

func (n Noise) String() string {
	switch {
	case math.IsNaN(n.SlowdownP99):
		return "not known, as neither stock again nor another round of stock was run"
	case n.OfRounds:
		return change(n.SlowdownP99) + " in a round of stock over its others, which is the noise of single rounds"
	default:
		return change(n.SlowdownP99) + " in stock again"
	}
}

func (d Data) noise(c Comparison, workload string) Noise {
	if again := c.of(Again, workload).SlowdownP99; !math.IsNaN(again) {
		return Noise{SlowdownP99: again}
	}
	return Noise{d.betweenRounds(workload), true}
}

// betweenRounds is P99 of the slow-down of Libra's harvested pairs in a round of stock over
// the median of its others: the median over the rounds.
func (d Data) betweenRounds(workload string) float64 {
	harvested := d.harvested(Libra, workload)
	var p99s []float64
	for _, run := range d.runs(Stock, workload) {
		mine, others := map[input][]float64{}, map[input][]float64{}
		for _, other := range d.runs(Stock, workload) {
			times := others
			if other.Round == run.Round {
				times = mine
			}
			for _, r := range other.Results {
				if key := (input{workload, r.Function, r.Input}); r.Error == "" && harvested[key] {
					times[key] = append(times[key], r.DurationMS)
				}
			}
		}
		var slowdowns []float64
		for key := range mine {
			slowdowns = append(slowdowns, median(mine[key])/median(others[key])-1)
		}
		p99s = append(p99s, report.Percentile(numbers(slowdowns), 99))
	}
	return median(p99s)
}
