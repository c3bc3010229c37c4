package main

import (
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
)

const (
	phaseDemo = "the demo"

	// demoTime is how long the demo may take, from when the box runs until its table. It
	// measures for less than six minutes of that.
	demoTime              = 9 * time.Minute
	demoLeast, demoLonger = 5 * time.Minute, time.Hour
	// demoBlock has as much rest as burst.
	demoBlock = 2 * burstPhase
	// demoBlocks is the number of blocks of each arm at each load. The first one is measured
	// in any case.
	demoBlocks = 3
	// demoPods is the number of pods of each arm.
	demoPods = 10

	// demoCores is how many cores the ten functions, with one pod each, can keep busy: on a
	// larger node the loads are percentages of these.
	demoCores = 2
	// typicalFunction and typicalPath are the CPU time of a request's function and the CPU
	// time beside it, as measured on the box. They stand in on clusters whose cgroups the demo
	// does not read.
	typicalFunction, typicalPath = 50 * time.Millisecond, 20 * time.Millisecond
)

// demoLoads are the loads, the last of which is dropped first when time is short, and about
// how much time passes between their blocks.
var demoLoads = []struct {
	load int
	gap  time.Duration
}{{loadHigh, 6 * time.Second}, {loadMiddle, 3 * time.Second}}

// demoPlan returns the demo's plan: all of it again and again, as often as there is time.
func demoPlan(limit time.Duration) timePlan {
	with := func(blocks int) timePlan {
		ph := phase{name: phaseDemo}
		for i, l := range demoLoads {
			c := combination{part: evaluation.PartDemo, load: l.load, pods: demoPods, length: demoBlock, gap: l.gap}
			for _, name := range []string{evaluation.Stock, evaluation.Libra, evaluation.NoLimits, evaluation.Again} {
				c.arms = append(c.arms, turn{arm: name, blocks: blocks, rank: i})
			}
			ph.combinations = append(ph.combinations, c)
		}
		return timePlan{ph}
	}
	return with(max(demoBlocks, int((limit-demoPace.opening-demoPace.closing)/with(1).takes())))
}

// shortened returns the rest of a phase, less as many blocks of each turn as it takes to fit
// into the time there is. Each turn keeps its next block.
func (ph phase) shortened(time time.Duration) phase {
	for shorter := true; shorter && ph.takes() > time; {
		shorter = false
		for _, c := range ph.combinations {
			for i := range c.arms {
				if t := &c.arms[i]; t.blocks > t.done+1 {
					t.blocks--
					shorter = true
				}
			}
		}
	}
	return ph
}

// hasBystanders reports whether its blocks call a service that did not opt in.
func (c combination) hasBystanders() bool {
	return c.part == evaluation.PartBystanders || c.part == evaluation.PartDemo
}
