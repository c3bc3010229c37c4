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

// resamples is how often the schedule is resampled, by slices and then by blocks.
const resamples = 2000

// draws says how often each slice of a schedule is in each resample. The first resample is what was
// measured: each slice once. Then there are resamples that draw single slices, and as many that draw
// all slices of a block at once: on a full node a queue lasts longer than a slice, so that adjacent
// slices are alike.
type draws [][]uint16

// newDraws draws from blocks of perBlock slices each.
func newDraws(seed uint64, blocks, perBlock int) draws {
	slices := blocks * perBlock
	rng := rand.New(rand.NewPCG(seed, uint64(slices)))
	d := draws{make([]uint16, slices)}
	for s := range slices {
		d[0][s] = 1
	}
	for _, length := range []int{1, perBlock} {
		for range resamples {
			times := make([]uint16, slices)
			for range slices / length {
				first := length * rng.IntN(slices/length)
				for s := first; s < first+length; s++ {
					times[s]++
				}
			}
			d = append(d, times)
		}
	}
	return d
}

// drawsOf returns the same draws for all arms of a combination that have the same blocks: an arm's
// requests in a slice are compared with the other's in the same slice.
func (c *comparison) drawsOf(k combination, numbers []int, slices int) draws {
	key := fmt.Sprintf("%v %v %d", k, numbers, slices)
	if _, ok := c.drawn[key]; !ok {
		h := fnv.New64a()
		fmt.Fprint(h, key)
		c.drawn[key] = newDraws(c.Seed^h.Sum64(), len(numbers), slices/len(numbers))
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
	answers, slices := c.answers(k, arm, numbers, f.service)
	var values column
	for _, a := range answers {
		if v := f.of(a); !math.IsNaN(v) {
			values.add(v, a.slice)
		}
	}
	return values.figures(f, c.drawsOf(k, numbers, slices))
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
// not two slices to draw from, or three blocks with one value each.
type interval struct {
	value, low, high float64
	function         string // of a worst figure
}

var unmeasured = interval{value: none, low: none, high: none}

// intervalOf returns the interval of a measured figure and its resamples, of which units slices have
// values. It holds both that of single slices and that of whole blocks.
func intervalOf(figures []float64, units int) interval {
	of := interval{value: figures[0], low: math.Inf(1), high: math.Inf(-1)}
	for resampled := range slices.Chunk(figures[1:], resamples) {
		drawn := slices.DeleteFunc(slices.Clone(resampled), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
		// If many resamples have no value, the others are no sample of what might have been measured.
		// And a single slice is drawn every time, so that a lack of variation says nothing.
		if len(drawn) < resamples*9/10 || units < 2 {
			return interval{value: of.value, low: none, high: none}
		}
		slices.Sort(drawn)
		of.low, of.high = min(of.low, drawn[rankOf(2.5, len(drawn))-1]), max(of.high, drawn[rankOf(97.5, len(drawn))-1])
	}
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
