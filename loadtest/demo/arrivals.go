package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

const (
	// Load alternates between two phases of this length, at these multiples of the
	// mean rate.
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

// arrivals returns an open-loop schedule of perSecond requests a second on average:
// Poisson, with bursts. The same seed always gives the same schedule.
func arrivals(seed uint64, perSecond float64, length time.Duration, of callees) []arrival {
	rng := rand.New(rand.NewPCG(seed, 0))
	var all []arrival
	at := time.Duration(0)
	for {
		// The interval has mean 1, and is used up at the current rate.
		left := rng.ExpFloat64()
		for {
			rate := perSecond * rateAt(at)
			end := at.Truncate(burstPhase) + burstPhase
			if within := rate * (end - at).Seconds(); within < left {
				left -= within
				if at = end; at >= length {
					return all
				}
				continue
			}
			at += time.Duration(left / rate * float64(time.Second))
			break
		}
		if at >= length {
			return all
		}
		all = append(all, arrival{at, of.functions[rng.IntN(len(of.functions))], 1 + rng.IntN(of.sets), rng.IntN(of.inputs)})
	}
}

func rateAt(at time.Duration) float64 {
	if at/burstPhase%2 == 0 {
		return restRate
	}
	return burstRate
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
