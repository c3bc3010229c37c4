package evaluation

import (
	"math"
	"slices"

	"libra.dev/libra/loadtest/bench/stats"
)

// units returns how many slices a figure is drawn from.
func (c *comparison) units(k combination, arm string, numbers []int, f figure) int {
	answers, _ := c.answers(k, arm, numbers, f.service)
	seen := map[int]bool{}
	for _, a := range answers {
		if !math.IsNaN(f.of(a)) {
			seen[a.slice] = true
		}
	}
	return len(seen)
}

// value returns an arm's figure, over all of its blocks.
func (c *comparison) value(k combination, arm string, f figure) interval {
	numbers := c.numbers(k, arm)
	if len(numbers) == 0 {
		return unmeasured
	}
	if f.total != nil {
		mean := stats.Mean(slices.DeleteFunc(c.totals(k, arm, numbers, f), math.IsNaN))
		return interval{value: mean.Estimate, low: max(0, mean.Low), high: mean.High}
	}
	return intervalOf(c.sampled(k, arm, numbers, f), c.units(k, arm, numbers, f))
}

// totals returns a figure that has one value for each block.
func (c *comparison) totals(k combination, arm string, numbers []int, f figure) []float64 {
	var totals []float64
	for _, b := range c.selected(k, arm, numbers) {
		totals = append(totals, f.total(b))
	}
	return totals
}

// ratioOfTotals returns the ratio of the sums of two arms' totals, which are of the same blocks.
func ratioOfTotals(totals, base []float64) interval {
	sum, sumBase, n := 0.0, 0.0, 0.0
	for i := range totals {
		if !math.IsNaN(totals[i] + base[i]) {
			sum, sumBase, n = sum+totals[i], sumBase+base[i], n+1
		}
	}
	if sumBase == 0 {
		return unmeasured
	}
	r := sum / sumBase
	// By how much the logarithm of each block's ratio differs from that of r, to first order: so a block counts
	// by how much it has of the sum, and may have nothing.
	var differ []float64
	for i := range totals {
		if d := (totals[i] - r*base[i]) / (sum / n); !math.IsNaN(d) {
			differ = append(differ, d)
		}
	}
	mean := stats.Mean(differ)
	return interval{value: r, low: r * math.Exp(mean.Low), high: r * math.Exp(mean.High)}
}

// ratio returns an arm's figure over another's, in the blocks that both have.
func (c *comparison) ratio(k combination, arm, base string, f figure) interval {
	if f.worst {
		return c.worst(k, arm, base, f)
	}
	numbers := c.common(k, arm, base)
	if len(numbers) == 0 {
		return unmeasured
	}
	if f.total != nil {
		return ratioOfTotals(c.totals(k, arm, numbers, f), c.totals(k, base, numbers, f))
	}
	return intervalOf(over(c.sampled(k, arm, numbers, f), c.sampled(k, base, numbers, f)), c.units(k, arm, numbers, f))
}

func over(figures, base []float64) []float64 {
	ratios := make([]float64, len(figures))
	for i := range figures {
		if ratios[i] = figures[i] / base[i]; base[i] == 0 {
			ratios[i] = none
		}
	}
	return ratios
}

// worst returns the greatest of the functions' ratios. In each resample that may be
// another function's.
func (c *comparison) worst(k combination, arm, base string, f figure) interval {
	numbers := c.common(k, arm, base)
	if len(numbers) == 0 {
		return unmeasured
	}
	greatest := make([]float64, 1+2*resamples)
	for i := range greatest {
		greatest[i] = none
	}
	function, units := "", 0
	for _, name := range c.functions(k) {
		of := f.ofFunction(name)
		ratios := over(c.sampled(k, arm, numbers, of), c.sampled(k, base, numbers, of))
		for i, v := range ratios {
			if math.IsNaN(greatest[i]) || v > greatest[i] {
				if greatest[i] = v; i == 0 && !math.IsNaN(v) {
					function = name
				}
			}
		}
		units = max(units, c.units(k, arm, numbers, of))
	}
	of := intervalOf(greatest, units)
	of.function = function
	return of
}

// maker returns the request whose time or slow-down is an arm's percentile.
func (c *comparison) maker(k combination, arm string, f figure) (answer, bool) {
	answers, _ := c.answers(k, arm, c.numbers(k, arm), f.service)
	var found answer
	wanted := c.value(k, arm, f).value
	for _, a := range answers {
		if f.of(a) == wanted {
			found = a
			return found, true
		}
	}
	return found, false
}

// more and less report whether an arm's figure is surely greater or less than stock's,
// by more than by: the whole interval is, and the ratio is further from 1 than that of
// stock measured again, if it was.
func (c *comparison) more(k combination, arm string, f figure, by float64) bool {
	r := c.ratio(k, arm, Stock, f)
	return r.low > 1+by && c.beyondNoise(k, arm, f)
}

func (c *comparison) less(k combination, arm string, f figure, by float64) bool {
	r := c.ratio(k, arm, Stock, f)
	return r.high < 1-by && c.beyondNoise(k, arm, f)
}

func (c *comparison) beyondNoise(k combination, arm string, f figure) bool {
	return c.ratio(k, arm, Stock, f).beyond(c.ratio(k, Again, Stock, f))
}
