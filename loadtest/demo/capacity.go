package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/demo/evaluation"
)

const (
	// calibrateLoad is the part of the node at which the cost of a request is measured.
	calibrateLoad = 50
	// platformLooks and pathLooks are how often what the platform uses is measured, and what
	// a request costs beside its function: the least counts, because what else happens on
	// the node meanwhile only adds (7 to 26 ms were measured of a request that costs 8).
	platformLooks, pathLooks = 3, 2
	// guessedPath is what a request costs beside its function before that was measured.
	guessedPath = 6 * time.Millisecond
	// dearestPath is more than a request can cost beside its function on a node that does
	// nothing else.
	dearestPath = 100 * time.Millisecond
	// leastRoom is how much of a core the platform must leave for functions.
	leastRoom = 0.2
)

// capacity is what the node has for functions, and what a request takes of it.
type capacity struct {
	cores    int
	platform float64 // cores in use when there are no requests
	// function is the CPU of a request's function on average, and path all that a request
	// takes beside it.
	function, path time.Duration
}

// perSecond is how many requests a second are so many percent of what the platform leaves.
func (c capacity) perSecond(load int) float64 {
	return float64(load) / 100 * c.room() / (c.function + c.path).Seconds()
}

// room is how many cores the platform leaves.
func (c capacity) room() float64 { return float64(c.cores) - c.platform }

// check says why nothing can be measured on such a node.
func (c capacity) check() error {
	if c.room() < leastRoom {
		return fmt.Errorf("the node uses %.2f of %d cores without a request, which leaves less than %.1f for functions: end what else runs on this machine", c.platform, c.cores, leastRoom)
	}
	if c.function <= 0 {
		return errors.New("the functions used no CPU when they ran alone: their cgroups are not those on this machine")
	}
	return nil
}

// pathOf is what each of some requests took beside its function: what the node used
// meanwhile, less the platform's and less what the functions use for the same requests
// alone.
func (c capacity) pathOf(node, passed time.Duration, requests int, functions time.Duration) (time.Duration, error) {
	if requests == 0 {
		return 0, errors.New("no request was sent to calibrate with")
	}
	path := (node - time.Duration(c.platform*float64(passed)) - functions) / time.Duration(requests)
	if path > dearestPath {
		return 0, fmt.Errorf("a request takes %v of CPU beside its function, which is more than %v: something else runs on this machine", path, dearestPath)
	}
	// Less than nothing is noise.
	return max(0, path), nil
}

// measurePlatform is how many cores are in use when nobody sends anything: the least of
// some times of a length, as what has just been started is busy for a while.
func measurePlatform(ctx context.Context, length time.Duration) (float64, error) {
	least := math.Inf(1)
	for range platformLooks {
		before, err := readNodeCPU()
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if err := rig.Pause(ctx, length); err != nil {
			return 0, err
		}
		after, err := readNodeCPU()
		if err != nil {
			return 0, err
		}
		least = min(least, (after.busy-before.busy).Seconds()/time.Since(began).Seconds())
	}
	return least, nil
}

// meanCPU is the CPU of a request's function on average, where each function and each of
// its inputs is as likely.
func meanCPU(alone []evaluation.Alone, functions []string) time.Duration {
	sum, inputs := map[string]float64{}, map[string]int{}
	for _, a := range alone {
		sum[a.Function] += a.CPUMilliseconds
		inputs[a.Function]++
	}
	mean := 0.0
	for _, f := range functions {
		if inputs[f] > 0 {
			mean += sum[f] / float64(inputs[f]) / float64(len(functions))
		}
	}
	return time.Duration(mean * float64(time.Millisecond))
}
