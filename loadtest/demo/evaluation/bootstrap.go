package evaluation

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"libra.dev/libra/loadtest/bench/stats"
)

// resamples is how often the schedule is resampled.
const resamples = 2000

// draws says how often each slice of a schedule is in each resample. The first resample is what was
// measured: each slice once.
type draws [][]uint16

func newDraws(seed uint64, units int) draws {
	rng := rand.New(rand.NewPCG(seed, uint64(units)))
	d := make(draws, 1+resamples)
	for i := range d {
		d[i] = make([]uint16, units)
		for u := range units {
			if i == 0 {
				d[i][u] = 1
			} else {
				d[i][rng.IntN(units)]++
			}
		}
	}
	return d
}

// drawsOf returns the same draws for all arms of a combination that have the same blocks: an arm's
// requests in a slice are compared with the other's in the same slice.
func (c *comparison) drawsOf(k combination, numbers []int, units int) draws {
	key := fmt.Sprintf("%v %v %d", k, numbers, units)
	if _, ok := c.drawn[key]; !ok {
		h := fnv.New64a()
		fmt.Fprint(h, key)
		c.drawn[key] = newDraws(c.Seed^h.Sum64(), units)
	}
	return c.drawn[key]
}

// sampled returns an arm's figure as it was measured, and then in each resample.
func (c *comparison) sampled(k combination, arm string, numbers []int, f figure) []float64 {
	key := fmt.Sprintf("%s %v %s %v %s", k.part, k, arm, numbers, f.name)
	if _, ok := c.known[key]; !ok {
		c.known[key] = c.sample(k, arm, numbers, f)
	}
	return c.known[key]
}

func (c *comparison) sample(k combination, arm string, numbers []int, f figure) []float64 {
	if f.total != nil {
		var values column
		for i, b := range c.selected(k, arm, numbers) {
			if v := f.total(b); !math.IsNaN(v) {
				values.add(v, i)
			}
		}
		return values.figures(f, c.drawsOf(k, numbers, len(numbers)))
	}
	answers, units := c.answers(k, arm, numbers, f.service)
	var values column
	for _, a := range answers {
		if v := f.of(a); !math.IsNaN(v) {
			values.add(v, a.slice)
		}
	}
	return values.figures(f, c.drawsOf(k, numbers, units))
}

// column is values, each with its slice.
type column []sliced

type sliced struct {
	value float64
	slice int
}

func (v *column) add(value float64, slice int) { *v = append(*v, sliced{value, slice}) }

// figures returns the figure in each of the draws.
func (v column) figures(f figure, d draws) []float64 {
	units := len(d[0])
	counts, sums := make([]int, units), make([]float64, units)
	for _, at := range v {
		counts[at.slice]++
		sums[at.slice] += at.value
	}
	sorted := slices.Clone(v)
	slices.SortFunc(sorted, func(a, b sliced) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.slice, b.slice))
	})
	found := make([]float64, len(d))
	for i, times := range d {
		n, sum := 0, 0.0
		for u, t := range times {
			n += int(t) * counts[u]
			sum += float64(t) * sums[u]
		}
		switch {
		case n == 0:
			found[i] = none
		case f.percentile == 0:
			found[i] = sum / float64(n)
		default:
			found[i] = sorted.percentile(times, n, f.percentile)
		}
	}
	return found
}

// rankOf returns the rank of a nearest-rank percentile among n values, from 1.
func rankOf(percentile float64, n int) int {
	return min(max(int(math.Ceil(percentile*float64(n)/100)), 1), n)
}

// percentile returns a percentile of n sorted values, each counted as often as its slice was drawn.
// It searches from the greatest down, because most percentiles that are asked for are there.
func (v column) percentile(times []uint16, n int, percentile float64) float64 {
	left := n - rankOf(percentile, n) + 1
	for i := len(v) - 1; i >= 0; i-- {
		if left -= int(times[v[i].slice]); left <= 0 {
			return v[i].value
		}
	}
	return none
}

// interval is a figure, or a ratio of two, with its 95 % interval. The ends are NaN if there were
// not two slices to draw from.
type interval struct {
	value, low, high float64
	function         string // of a worst figure
}

var unmeasured = interval{value: none, low: none, high: none}

// intervalOf returns the interval of a measured figure and its resamples, drawn from units slices
// or blocks.
func intervalOf(figures []float64, units int) interval {
	of := interval{value: figures[0], low: none, high: none}
	drawn := slices.DeleteFunc(slices.Clone(figures[1:]), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	// If many resamples have no value, the others are no sample of what might have been measured.
	// And a single slice or block is drawn every time, so that a lack of variation says nothing.
	if len(drawn) < len(figures)*9/10 || units < 2 {
		return of
	}
	slices.Sort(drawn)
	of.low, of.high = drawn[rankOf(2.5, len(drawn))-1], drawn[rankOf(97.5, len(drawn))-1]
	return of
}

func (i interval) measured() bool { return !math.IsNaN(i.value) && !math.IsInf(i.value, 0) }

// known reports whether the interval is narrow enough for the ratio to mean something.
func (i interval) known(tolerance float64) bool {
	return i.plain().Narrow(tolerance)
}

// beyond reports whether a ratio is further from 1 than noise, the ratio of a base to itself. It is
// true if the base was not measured again.
func (i interval) beyond(noise interval) bool {
	return !noise.measured() || math.Abs(math.Log(i.value)) > math.Abs(math.Log(noise.value))
}

func (i interval) plain() stats.Interval {
	return stats.Interval{Estimate: i.value, Low: i.low, High: i.high}
}
