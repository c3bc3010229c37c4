// Package stats compares measurements of interleaved blocks. A block is all arms once, shortly
// after each other, so that a disturbance of the machine that lasts for a while disturbs all of
// them.
package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Resamples is the number of draws of Bootstrap.
const Resamples = 2000

// Interval is an estimate with the ends of its 95 % interval.
type Interval struct {
	Estimate, Low, High float64
}

// Bootstrap estimates a statistic over blocks. Resamples times, it draws as many blocks as there
// are, with replacement, and calls statistic with how often each block counts. The interval is
// between the percentiles 2.5 and 97.5.
func Bootstrap(blocks int, seed uint64, statistic func(counts []int) float64) Interval {
	counts := make([]int, blocks)
	for i := range counts {
		counts[i] = 1
	}
	in := Interval{Estimate: statistic(counts), Low: math.NaN(), High: math.NaN()}
	if blocks < 2 {
		return in
	}
	random := rand.New(rand.NewPCG(seed, 0))
	drawn := make([]float64, Resamples)
	for i := range drawn {
		clear(counts)
		for range blocks {
			counts[random.IntN(blocks)]++
		}
		drawn[i] = statistic(counts)
	}
	slices.Sort(drawn)
	in.Low, in.High = drawn[Resamples*25/1000], drawn[Resamples-1-Resamples*25/1000]
	return in
}

// students are the quantiles 0.975 of Student's t for 2, 3, … degrees of freedom.
var students = []float64{
	4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
	2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

func student(freedom int) float64 {
	if i := freedom - 2; i < len(students) {
		return students[i]
	}
	return 1.96 + 2.46/float64(freedom) // within 0.001
}

// Mean estimates the mean of values, one from each block, with Student's t: drawn anew, a few values would
// vary too little. Of fewer than three it has no interval.
func Mean(blocks []float64) Interval {
	n := float64(len(blocks))
	sum, squares := 0.0, 0.0
	for _, v := range blocks {
		sum += v
	}
	in := Interval{Estimate: sum / n, Low: math.NaN(), High: math.NaN()}
	if n < 3 {
		return in
	}
	for _, v := range blocks {
		squares += (v - in.Estimate) * (v - in.Estimate)
	}
	half := student(len(blocks)-1) * math.Sqrt(squares/(n-1)/n)
	in.Low, in.High = in.Estimate-half, in.Estimate+half
	return in
}

// Percentile estimates a percentile of values, in the order in which they were measured. It draws
// blocks of atOnce successive values: a disturbance that lasts for a while affects several.
func Percentile(values []float64, percent float64, atOnce int, seed uint64) Interval {
	pooled := Pool(slices.Collect(slices.Chunk(values, atOnce)))
	return Bootstrap(len(pooled.sizes), seed, func(counts []int) float64 { return pooled.Percentile(counts, percent) })
}

// Pooled has the values of all blocks of an arm.
type Pooled struct {
	descending []value
	sizes      []int // by block
}

type value struct {
	v     float64
	block int
}

// Pool pools the values of each block.
func Pool(blocks [][]float64) Pooled {
	var p Pooled
	for block, values := range blocks {
		p.sizes = append(p.sizes, len(values))
		for _, v := range values {
			p.descending = append(p.descending, value{v, block})
		}
	}
	slices.SortFunc(p.descending, func(a, b value) int {
		switch {
		case a.v > b.v:
			return -1
		case a.v < b.v:
			return 1
		default:
			return 0
		}
	})
	return p
}

// Percentile returns the nearest-rank percentile of the values, with those of each block taken as
// often as counts says. Without values, it is NaN.
func (p Pooled) Percentile(counts []int, percent float64) float64 {
	total := 0
	for block, size := range p.sizes {
		total += counts[block] * size
	}
	if total == 0 {
		return math.NaN()
	}
	// Computed the other way round, 99 per cent of 200 would be a little above 198.
	above := total - max(1, int(math.Ceil(percent*float64(total)/100)))
	seen := 0
	for _, v := range p.descending {
		if seen += counts[v.block]; seen > above {
			return v.v
		}
	}
	return math.NaN()
}

// Orders returns the orders in which the arms run, by block. In as many blocks as there are
// possible orders, each is used once, shuffled by the seed.
func Orders(blocks, arms int, seed uint64) [][]int {
	possible := permutations(arms)
	random := rand.New(rand.NewPCG(seed, 1))
	var orders [][]int
	for len(orders) < blocks {
		random.Shuffle(len(possible), func(i, j int) { possible[i], possible[j] = possible[j], possible[i] })
		orders = append(orders, possible...)
	}
	return orders[:blocks]
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{{}}
	}
	var all [][]int
	for _, shorter := range permutations(n - 1) {
		for at := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), at, n-1))
		}
	}
	return all
}
