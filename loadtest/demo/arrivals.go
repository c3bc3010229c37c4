package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// Load alternates between two phases of this length, at these multiples of the
	// mean rate, whose mean is 1.
	burstPhase = 5 * time.Second
	restRate   = 0.6
	burstRate  = 1.4
)

// arrival is a planned request.
type arrival struct {
	at         time.Duration
	function   string
	set, input int
}

// callees are what arrivals are spread over, evenly.
type callees struct {
	functions []string
	sets      int // copies of each function, from 1
	inputs    int // in each function's pool
}

// arrivals returns an open-loop schedule of perSecond requests a second on average, in bursts: the
// moments of a Poisson process that happened to have just as many requests. Nor is it left to chance
// how often each function, each of its inputs and each of its copies comes. So schedules of one load
// take equally much CPU, and a queue is longer in one of them by its order alone. The same seed
// always gives the same schedule.
func arrivals(seed uint64, perSecond float64, length time.Duration, of callees) []arrival {
	rng := rand.New(rand.NewPCG(seed, 0))
	atMean := timeAtMeanRate(length)
	all := make([]arrival, int(math.Round(perSecond*atMean.Seconds())))
	functions := dealt(rng, len(all), len(of.functions))
	for i := range all {
		all[i].at = lengthOf(time.Duration(rng.Float64() * float64(atMean)))
		all[i].function = of.functions[functions[i]]
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	for _, f := range of.functions {
		var calls []*arrival
		for i := range all {
			if all[i].function == f {
				calls = append(calls, &all[i])
			}
		}
		sets, inputs := dealt(rng, len(calls), of.sets), dealt(rng, len(calls), of.inputs)
		for i, c := range calls {
			c.set, c.input = 1+sets[i], inputs[i]
		}
	}
	return all
}

// timeAtMeanRate returns how long the mean rate takes for as many requests as there are in a length.
func timeAtMeanRate(length time.Duration) time.Duration {
	rest := length % (2 * burstPhase)
	burst := max(0, rest-burstPhase)
	return length - rest + time.Duration(restRate*float64(rest-burst)+burstRate*float64(burst))
}

// lengthOf is the inverse of timeAtMeanRate.
func lengthOf(atMean time.Duration) time.Duration {
	rest := float64(atMean % (2 * burstPhase))
	burst := max(0, rest-restRate*float64(burstPhase))
	return atMean.Truncate(2*burstPhase) + time.Duration((rest-burst)/restRate+burst/burstRate)
}

// dealt returns n of the numbers below size in random order, each as often as every other, give or
// take one.
func dealt(rng *rand.Rand, n, size int) []int {
	order := rng.Perm(size)
	all := make([]int, n)
	for i := range all {
		all[i] = order[i%size]
	}
	rng.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// seedOf derives a seed from another one and from its purpose.
func seedOf(seed uint64, what ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, seed)
	for _, w := range what {
		fmt.Fprintf(h, "/%v", w)
	}
	return h.Sum64()
}
