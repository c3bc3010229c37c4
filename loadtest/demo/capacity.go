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
	// calibrateLoad is the load, in percent, at which the cost of a request is measured.
	calibrateLoad = 50
	// platformLooks and pathLooks are how often the platform's own CPU use, and the cost of
	// a request beside its function, are measured. The least counts, because other activity
	// on the node only adds (a request that costs 8 ms was measured at 7 to 26 ms).
	platformLooks, pathLooks = 3, 2
	// guessedPath is what a request is taken to cost beside its function until that is
	// measured.
	guessedPath = 6 * time.Millisecond
	// dearestPath is more than a request can cost beside its function on an otherwise idle
	// node.
	dearestPath = 100 * time.Millisecond
	// leastRoom is how much of a core the platform must leave for functions.
	leastRoom = 0.2
)

// capacity is how much CPU the node has for functions, and how much of it a request takes.
type capacity struct {
	cores    int
	platform float64 // cores in use when there are no requests
	// function is the mean CPU time of a request's function, and path all CPU time that a
	// request takes beside it.
	function, path time.Duration
}

// perSecond returns how many requests a second use load percent of the cores that the
// platform leaves.
func (c capacity) perSecond(load int) float64 {
	return float64(load) / 100 * c.room() / (c.function + c.path).Seconds()
}

// room returns how many cores the platform leaves.
func (c capacity) room() float64 { return float64(c.cores) - c.platform }

// check returns an error that says why nothing can be measured on this node, or nil.
func (c capacity) check() error {
	if c.room() < leastRoom {
		return fmt.Errorf("the node uses %.2f of %d cores without a request, which leaves less than %.1f for functions: end the other programs on this machine", c.platform, c.cores, leastRoom)
	}
	if c.function <= 0 {
		return errors.New("the functions used no CPU when they ran alone: their cgroups are not those on this machine")
	}
	return nil
}

// pathOf returns the CPU time that each of some requests took beside its function: the
// node's meanwhile, less the platform's and less the functions' for the same requests alone.
func (c capacity) pathOf(node, passed time.Duration, requests int, functions time.Duration) (time.Duration, error) {
	if requests == 0 {
		return 0, errors.New("no request was sent for the calibration")
	}
	path := (node - time.Duration(c.platform*float64(passed)) - functions) / time.Duration(requests)
	if path > dearestPath {
		return 0, fmt.Errorf("a request takes %v of CPU outside its function, which is more than %v: something else runs on this machine", path, dearestPath)
	}
	// A negative result is noise.
	return max(0, path), nil
}

// measurePlatform returns how many cores are in use while nobody sends anything: the least
// of platformLooks measurements of a length, because parts that have just started are busy
// for a while.
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

// meanCPU returns the mean CPU time of a request's function, if each function and each of
// its inputs is equally likely.
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
