package main

import (
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
)

const (
	phaseDemo = "the demo"

	// demoTime is how long the demo may take, from when the box runs until its table, of which
	// it measures for less than six minutes.
	demoTime              = 9 * time.Minute
	demoLeast, demoLonger = 5 * time.Minute, time.Hour
	// demoBlock has as much of rest as of burst.
	demoBlock = 2 * burstPhase
	// demoBlocks are those of each arm at each load. The first are measured in any case.
	demoBlocks = 3
	// demoPods are those of each arm.
	demoPods = 10

	// demoCores are so many cores as the ten functions, of one pod each, can keep busy: on a
	// larger node the loads are of these.
	demoCores = 2
	// typicalFunction and typicalPath are the CPU of a request's function and of what is
	// beside it, as they were on the box, for clusters whose cgroups nobody reads.
	typicalFunction, typicalPath = 50 * time.Millisecond, 20 * time.Millisecond
)

// demoLoads are, in the order in which they go when time is short, with what passes about
// between their blocks.
var demoLoads = []struct {
	load int
	gap  time.Duration
}{{loadHigh, 6 * time.Second}, {loadMiddle, 3 * time.Second}}

// demoPlan is the demo's: all of it again and again, as often as there is time.
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

// shortened is the rest of a phase with so many blocks of each turn less that it takes no
// longer than the time there is, but with the next of each.
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

// hasBystanders says whether a service that did not opt in is called in its blocks.
func (c combination) hasBystanders() bool {
	return c.part == evaluation.PartBystanders || c.part == evaluation.PartDemo
}
