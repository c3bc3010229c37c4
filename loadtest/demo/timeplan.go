package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// combination is a load and a number of pods, of some part of the evaluation. Its arms are
// measured in blocks: all with the first schedule, in random order, then all with the next.
type combination struct {
	part       string
	load, pods int
	length     time.Duration // of a block
	// gap is about what passes between the end of a block's schedule and the next block.
	gap  time.Duration
	arms []turn
}

// turn is an arm of a combination: how many blocks it has, and how soon it is left out
// when time is short. Those with a greater rank go first.
type turn struct {
	arm    string
	blocks int
	rank   int
	done   int // of the blocks
}

// phase are combinations that the same functions serve, which are installed before it.
type phase struct {
	name string
	// setUp is what it takes to begin, and perArm what each arm adds to that; those that
	// share their functions with another add it once.
	setUp, perArm time.Duration
	// vpa is what the autoscaler adds, where it is among the arms.
	vpa          time.Duration
	combinations []combination
}

// timePlan is what is measured, in its order.
type timePlan []phase

// fit leaves out turns until the rest takes no longer than the time there is, the greatest
// rank first, and of the same rank the later one. Those of one combination and rank stay
// together, as they are compared. A phase may be left without any.
func (p timePlan) fit(time time.Duration) timePlan {
	type group struct{ phase, combination, rank int }
	var all []group
	for i, ph := range p {
		for j, c := range ph.combinations {
			for _, t := range c.arms {
				if g := (group{i, j, t.rank}); !slices.Contains(all, g) {
					all = append(all, g)
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b group) int { return cmp.Compare(a.rank, b.rank) })
	taken := map[group]bool{}
	with := func() timePlan {
		fitted := slices.Clone(p)
		for i, ph := range p {
			fitted[i].combinations = nil
			for j, c := range ph.combinations {
				var turns []turn
				for _, t := range c.arms {
					if taken[group{i, j, t.rank}] {
						turns = append(turns, t)
					}
				}
				if c.arms = turns; len(turns) > 0 {
					fitted[i].combinations = append(fitted[i].combinations, c)
				}
			}
		}
		return fitted
	}
	for _, g := range all {
		taken[g] = true
		if with().takes() > time {
			delete(taken, g)
		}
	}
	return with()
}

// leftOut says which turns of a phase are not in what was made of it.
func (ph phase) leftOut(fitted phase) []string {
	there := map[string]bool{}
	for _, c := range fitted.combinations {
		for _, t := range c.arms {
			there[c.String()+t.arm] = true
		}
	}
	var left []string
	for _, c := range ph.combinations {
		var titles []string
		for _, t := range c.arms {
			if !there[c.String()+t.arm] {
				titles = append(titles, armNamed(t.arm).Title)
			}
		}
		if titles != nil {
			left = append(left, fmt.Sprintf("%s under %s: there was no time.", c, strings.Join(titles, ", ")))
		}
	}
	return left
}

// takes is about how long the whole takes.
func (p timePlan) takes() time.Duration {
	var sum time.Duration
	for _, ph := range p {
		sum += ph.takes()
	}
	return sum
}

func (ph phase) takes() time.Duration {
	if len(ph.combinations) == 0 {
		return 0
	}
	sum := ph.prepares()
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			sum += time.Duration(t.blocks-t.done) * (c.length + c.gap)
		}
	}
	return sum
}

// prepares is how long it takes until its first block.
func (ph phase) prepares() time.Duration {
	sum := ph.setUp + time.Duration(len(ph.places()))*ph.perArm
	if slices.ContainsFunc(ph.arms(), func(a arm) bool { return a.vpa }) {
		sum += ph.vpa
	}
	return sum
}

// places are the arms whose namespaces have the functions of the phase.
func (ph phase) places() []string {
	var places []string
	for _, a := range ph.arms() {
		if at := a.place(); !slices.Contains(places, at) {
			places = append(places, at)
		}
	}
	return places
}

// arms are those of the phase, in the order of the report.
func (ph phase) arms() []arm {
	named := map[string]bool{}
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			named[t.arm] = true
		}
	}
	var found []arm
	for _, a := range slices.Concat(arms, ablations) {
		if named[a.Name] {
			found = append(found, a)
		}
	}
	return found
}

// arms are those of all phases, in the order of the report.
func (p timePlan) arms() []arm {
	var all phase
	for _, ph := range p {
		all.combinations = append(all.combinations, ph.combinations...)
	}
	return all.arms()
}

// blocks is how many there are.
func (p timePlan) blocks() int {
	n := 0
	for _, ph := range p {
		for _, c := range ph.combinations {
			for _, t := range c.arms {
				n += t.blocks - t.done
			}
		}
	}
	return n
}

func (c combination) String() string {
	said := fmt.Sprintf("%s at %d %%", c.part, c.load)
	if c.pods > 0 {
		said += fmt.Sprintf(" with %d pods", c.pods)
	}
	return said
}

// write prints the plan as a table.
func (p timePlan) write(w io.Writer) {
	for _, ph := range p {
		if len(ph.combinations) == 0 {
			continue
		}
		fmt.Fprintf(w, "         %s: %s, of which %s to set up\n", ph.name, minutes(ph.takes()), minutes(ph.prepares()))
		for _, c := range ph.combinations {
			var said []string
			for _, t := range c.arms {
				said = append(said, fmt.Sprintf("%s %d", t.arm, t.blocks))
			}
			fmt.Fprintf(w, "           %s, blocks of %s: %s\n", c, c.length, strings.Join(said, ", "))
		}
	}
}

func minutes(d time.Duration) string { return fmt.Sprintf("%.0f min", d.Minutes()) }

// lengths are those of the blocks, and how many each arm has at the least, where it is not
// less important.
type lengths struct {
	block  time.Duration
	blocks int
}

var (
	full  = lengths{40 * time.Second, 4}
	quick = lengths{20 * time.Second, 2}
)

const (
	fullTime  = 118 * time.Minute
	quickTime = 15 * time.Minute
	// ablationTime is that of a run of its own.
	ablationTime = 60 * time.Minute
	// openingTime is what it takes to install Libra, to run each input alone and to find out
	// what a request costs, and quickOpeningTime with fewer inputs.
	openingTime      = 6 * time.Minute
	quickOpeningTime = 4*time.Minute + 30*time.Second
	// vpaInstalls is what it takes to start the autoscaler, and to stop it.
	vpaInstalls = 30 * time.Second
	// closingTime is what it takes to put everything back, and to write the report.
	closingTime      = 3 * time.Minute
	quickClosingTime = time.Minute

	loadLow, loadMiddle, loadHigh, loadOver = 15, 40, 90, 120
)

// gaps are about what passes after the end of a schedule, until its last requests are
// answered, all is written down and the next arm is found ready.
var gaps = map[int]time.Duration{loadLow: 4 * time.Second, loadMiddle: 5 * time.Second, loadHigh: 8 * time.Second, loadOver: 14 * time.Second}

// plan is everything that is worth measuring, in the order in which it is measured.
func plan(l lengths) timePlan {
	// core are what the goals are about, again what says whether they can be told, and
	// others what is told beside them.
	requests := func(load, pods, core, again, others int) combination {
		c := combination{part: evaluation.PartRequests, load: load, pods: pods, length: l.block, gap: gaps[load]}
		for _, name := range []string{evaluation.Stock, evaluation.Libra, evaluation.NoLimits} {
			c.arms = append(c.arms, turn{arm: name, blocks: l.blocks, rank: core})
		}
		c.arms = append(c.arms, turn{arm: evaluation.Again, blocks: l.blocks, rank: again})
		if pods == 10 {
			for _, name := range []string{evaluation.Owners, evaluation.NoLimitsWeighted} {
				c.arms = append(c.arms, turn{arm: name, blocks: max(1, l.blocks/2), rank: others})
			}
			// It takes its time to learn first.
			c.arms = append(c.arms, turn{arm: evaluation.VPA, blocks: max(1, l.blocks/2), rank: others + 1})
		}
		return c
	}
	bystanders := func(load int) combination {
		blocks := max(1, l.blocks/2)
		c := combination{part: evaluation.PartBystanders, load: load, pods: 10, length: l.block, gap: gaps[load]}
		for _, name := range []string{evaluation.Stock, evaluation.Libra, evaluation.NoLimits} {
			c.arms = append(c.arms, turn{arm: name, blocks: blocks, rank: 5})
		}
		c.arms = append(c.arms, turn{arm: evaluation.Again, blocks: blocks, rank: 5})
		return c
	}
	memory := combination{part: evaluation.PartMemory, load: loadLow, pods: 1, length: l.block / 2, gap: 8 * time.Second}
	for _, name := range []string{evaluation.Stock, evaluation.NoLimits, evaluation.VPA, evaluation.Libra, evaluation.Fits} {
		memory.arms = append(memory.arms, turn{arm: name, blocks: max(1, l.blocks/2), rank: 6})
	}
	cost := combination{part: evaluation.PartCost, load: loadMiddle, length: l.block * 3 / 2, gap: gaps[loadMiddle]}
	for _, name := range []string{evaluation.Stock, evaluation.Libra, evaluation.NoLimits} {
		cost.arms = append(cost.arms, turn{arm: name, blocks: max(1, l.blocks/2), rank: 9})
	}
	return timePlan{
		{phaseTen, 30 * time.Second, 35 * time.Second, vpaLearns + vpaInstalls, []combination{
			requests(loadHigh, 10, 1, 2, 7), requests(loadMiddle, 10, 3, 3, 9),
			requests(loadOver, 10, 3, 4, 11), requests(loadLow, 10, 3, 5, 13),
			bystanders(loadHigh), bystanders(loadMiddle),
		}},
		{phaseMemory, 30 * time.Second, 12 * time.Second, vpaLearnsAgain, []combination{memory}},
		{phaseForty, time.Minute, time.Minute, 0, []combination{requests(loadHigh, 40, 4, 5, 0), requests(loadOver, 40, 4, 6, 0)}},
		{phaseCost, time.Minute, 35 * time.Second, 0, []combination{cost}},
	}
}

// The phases. Each has its own functions, but for forty, which has ten's and three times
// as many more.
const (
	phaseTen       = "ten functions"
	phaseForty     = "forty functions"
	phaseMemory    = "a function that is short of memory"
	phaseCost      = "ten functions with autoscaling"
	phaseAblations = "ablations"
)

// ablationPlan is what is measured of Libra without some of it.
func ablationPlan(l lengths) timePlan {
	c := combination{part: evaluation.PartAblations, load: loadMiddle, pods: 10, length: l.block, gap: 35 * time.Second}
	for _, name := range []string{evaluation.Stock, evaluation.Libra, evaluation.Owners} {
		c.arms = append(c.arms, turn{arm: name, blocks: l.blocks, rank: 1})
	}
	for _, a := range ablations {
		c.arms = append(c.arms, turn{arm: a.Name, blocks: l.blocks, rank: 2})
	}
	return timePlan{{phaseAblations, 30 * time.Second, 35 * time.Second, 0, []combination{c}}}
}

// only keeps the parts that are named, and leaves out the arms that are.
func (p timePlan) only(parts, without []string) timePlan {
	var kept timePlan
	for _, ph := range p {
		var combinations []combination
		for _, c := range ph.combinations {
			c.arms = slices.DeleteFunc(slices.Clone(c.arms), func(t turn) bool { return slices.Contains(without, t.arm) })
			if slices.Contains(parts, c.part) && len(c.arms) > 0 {
				combinations = append(combinations, c)
			}
		}
		ph.combinations = combinations
		if len(ph.combinations) > 0 {
			kept = append(kept, ph)
		}
	}
	return kept
}
