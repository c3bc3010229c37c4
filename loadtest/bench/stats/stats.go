// Package stats compares what was measured in interleaved blocks: a block is all
// arms once, shortly after each other, so that what disturbs a machine for a while
// disturbs all of them.
package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Resamples is how often Bootstrap draws.
const Resamples = 2000

// Interval is an estimate with the ends of its 95 % interval.
type Interval struct {
	Estimate, Low, High float64
}

// Bootstrap estimates a statistic over blocks. It draws as many blocks as there
// are, with replacement, Resamples times, and each time calls statistic with how
// often each block counts; the interval is between the percentiles 2.5 and 97.5.
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

// Mean estimates that of values, one of each block.
func Mean(blocks []float64, seed uint64) Interval {
	return Bootstrap(len(blocks), seed, func(counts []int) float64 {
		sum := 0.0
		for i, n := range counts {
			sum += blocks[i] * float64(n)
		}
		return sum / float64(len(blocks))
	})
}

// Percentile estimates that of values, in the order in which they were measured. They are drawn in
// blocks of successive ones, atOnce each: what disturbs a machine for a while disturbs several.
func Percentile(values []float64, percent float64, atOnce int, seed uint64) Interval {
	pooled := Pool(slices.Collect(slices.Chunk(values, atOnce)))
	return Bootstrap(len(pooled.sizes), seed, func(counts []int) float64 { return pooled.Percentile(counts, percent) })
}

// Pooled are the values of all blocks of an arm.
type Pooled struct {
	descending []value
	sizes      []int // by block
}

type value struct {
	v     float64
	block int
}

// Pool takes the values of each block.
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

// Percentile is the nearest-rank percentile of the values, those of each block
// taken as often as counts says. It is NaN of no values.
func (p Pooled) Percentile(counts []int, percent float64) float64 {
	total := 0
	for block, size := range p.sizes {
		total += counts[block] * size
	}
	if total == 0 {
		return math.NaN()
	}
	// Computed the other way round, 99 per cent of 200 would be a hair above 198.
	above := total - max(1, int(math.Ceil(percent*float64(total)/100)))
	seen := 0
	for _, v := range p.descending {
		if seen += counts[v.block]; seen > above {
			return v.v
		}
	}
	return math.NaN()
}

// Orders are the orders in which the arms run, by block: each possible order once
// in as many blocks as there are orders, shuffled by the seed.
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
