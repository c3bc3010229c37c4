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

// combination is a load and a number of pods, in some part of the evaluation. Its arms are measured in
// blocks: all with the first schedule, in random order, then all with the next.
type combination struct {
	part       string
	load, pods int
	length     time.Duration // of a block
	// gap is about how long it takes from the end of a block's schedule to the next block.
	gap  time.Duration
	arms []turn
}

// turn is an arm of a combination: how many blocks it has, and how soon it is left out when time is short.
// Turns with a greater rank are left out first.
type turn struct {
	arm    string
	blocks int
	rank   int
	done   int // blocks already measured, or in earlier draws
}

// phase is a group of combinations that the same functions serve, which are installed before it.
type phase struct {
	name string
	// draw says which functions of that kind these are, from 1: each draw has its own namespace, so that
	// hash draws nodes for the functions anew. 0 means that there are no draws.
	draw int
	// setUp is how long it takes to begin, and perArm what each arm adds to that; arms that share their
	// functions add it once.
	setUp, perArm time.Duration
	// vpa is what the autoscaler adds, if it is among the arms.
	vpa          time.Duration
	combinations []combination
}

// timePlan is what is measured, in order.
type timePlan []phase

// fit takes turns that take no longer together than the time there is: the least rank first, and within a
// rank the earlier one. One that does not fit is left out, and a lesser one that still fits is taken. Turns of one combination and rank stay together, because they are compared.
// None stays without the turns of its combination's least rank, which it is compared with. A phase may be
// left without any.
func (p timePlan) fit(time time.Duration) timePlan {
	type group struct{ phase, combination, rank int }
	var all []group
	least := map[[2]int]group{}
	for i, ph := range p {
		for j, c := range ph.combinations {
			for _, t := range c.arms {
				if g, ok := least[[2]int{i, j}]; !ok || t.rank < g.rank {
					least[[2]int{i, j}] = group{i, j, t.rank}
				}
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
		if !taken[least[[2]int{g.phase, g.combination}]] || with().takes() > time {
			delete(taken, g)
		}
	}
	return with()
}

// leftOut describes the turns of a phase that are not in fitted.
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
			left = append(left, fmt.Sprintf("%s under %s%s: not enough time.", c, strings.Join(titles, ", "), ph.drawn()))
		}
	}
	return left
}

// takes returns about how long the whole plan takes.
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
		sum += c.takes()
	}
	return sum
}

func (c combination) takes() time.Duration {
	var sum time.Duration
	for _, t := range c.arms {
		sum += time.Duration(t.blocks-t.done) * c.blockTakes()
	}
	return sum + time.Duration(c.changes())*partsChange
}

// changes returns how often Libra's parts are set anew: arms with the same settings follow one another.
func (c combination) changes() int {
	n, most := 0, 0
	for _, t := range c.arms {
		most = max(most, t.blocks)
	}
	for number := 1; number <= most; number++ {
		kinds := map[parts]bool{}
		for _, t := range c.arms {
			if t.done < number && number <= t.blocks {
				kinds[armNamed(t.arm).parts] = true
			}
		}
		if len(kinds) > 1 {
			n += len(kinds)
		}
	}
	return n
}

// kind is a kind of blocks that take about equally long beyond their schedules.
type kind struct {
	part string
	load int
}

// blockTakes returns about how long a block takes.
func (c combination) blockTakes() time.Duration { return c.length + c.gap }

// takesOf returns about how long the blocks with this number take.
func (ph phase) takesOf(number int) time.Duration {
	sum := time.Duration(0)
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			if number <= t.blocks {
				sum += c.blockTakes()
			}
		}
	}
	return sum
}

// gapsSeen is how long blocks took beyond their schedules.
type gapsSeen map[kind]struct {
	sum time.Duration
	n   int
}

// gapsToKnow is how many blocks it takes to know their gap.
const gapsToKnow = 6

func (g gapsSeen) note(c combination, gap time.Duration) {
	seen := g[kind{c.part, c.load}]
	seen.sum, seen.n = seen.sum+gap, seen.n+1
	g[kind{c.part, c.load}] = seen
}

// by returns the plan with the gaps that were seen.
func (p timePlan) by(seen gapsSeen) timePlan {
	planned := slices.Clone(p)
	for i := range planned {
		planned[i].combinations = slices.Clone(planned[i].combinations)
		for j, c := range planned[i].combinations {
			if s := seen[kind{c.part, c.load}]; s.n >= gapsToKnow {
				planned[i].combinations[j].gap = s.sum / time.Duration(s.n)
			}
		}
	}
	return planned
}

// prepares returns how long it takes until the phase's first block.
func (ph phase) prepares() time.Duration {
	sum := ph.setUp + time.Duration(len(ph.places()))*ph.perArm
	if slices.ContainsFunc(ph.arms(), func(a arm) bool { return a.vpa }) {
		sum += ph.vpa
	}
	return sum
}

// places returns the arms whose namespaces have the phase's functions.
func (ph phase) places() []string {
	var places []string
	for _, a := range ph.arms() {
		if at := a.place(); !slices.Contains(places, at) {
			places = append(places, at)
		}
	}
	return places
}

// namespaceAt returns the namespace of its functions at a place.
func (ph phase) namespaceAt(place string) string {
	namespace := namespaceOf(ph.name, place)
	if ph.draw > 0 {
		namespace += fmt.Sprintf("-%d", ph.draw)
	}
	return namespace
}

// drawn says which draw of its functions the phase has; empty if there are no draws.
func (ph phase) drawn() string {
	if ph.draw == 0 {
		return ""
	}
	return fmt.Sprintf(", draw %d", ph.draw)
}

// arms returns the arms of the phase, in the order of the report.
func (ph phase) arms() []arm {
	named := map[string]bool{}
	for _, c := range ph.combinations {
		for _, t := range c.arms {
			named[t.arm] = true
		}
	}
	var found []arm
	for _, a := range allArms() {
		if named[a.Name] {
			found = append(found, a)
		}
	}
	return found
}

// arms returns the arms of all phases, in the order of the report.
func (p timePlan) arms() []arm {
	var all phase
	for _, ph := range p {
		all.combinations = append(all.combinations, ph.combinations...)
	}
	return all.arms()
}

// blocks returns the number of blocks that are left to measure.
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
	switch c.pods {
	case 0:
		return said
	case 1:
		return said + " with 1 pod"
	}
	return said + fmt.Sprintf(" with %d pods", c.pods)
}

// write prints the plan as a table.
func (p timePlan) write(w io.Writer) {
	for _, ph := range p {
		if len(ph.combinations) == 0 {
			continue
		}
		fmt.Fprintf(w, "         %s%s: %s, of which %s to set up\n", ph.name, ph.drawn(), minutes(ph.takes()), minutes(ph.prepares()))
		for _, c := range ph.combinations {
			var said []string
			for _, t := range c.arms {
				said = append(said, fmt.Sprintf("%s %d", t.arm, t.blocks-t.done))
			}
			fmt.Fprintf(w, "           %s, blocks of %s: %s\n", c, c.length, strings.Join(said, ", "))
		}
	}
}

func minutes(d time.Duration) string { return fmt.Sprintf("%.0f min", d.Minutes()) }

// lengths has the length of blocks, and the number of blocks of each arm that a goal is about. Other arms
// have half as many.
type lengths struct {
	block  time.Duration
	blocks int
	// short is the length of blocks with bystanders, and of blocks about memory. Counts per block are more
	// certain with more blocks, and bystanders are called at a fixed rate.
	short time.Duration
}

var (
	full  = lengths{40 * time.Second, 4, 20 * time.Second}
	quick = lengths{20 * time.Second, 2, 10 * time.Second}
)

// mostBlocks is the most blocks that may be asked for: those of a day.
const mostBlocks = 1000

// These times were seen on two cores. The plan is made again as time passes, with what blocks really take.
const (
	fullTime  = 119 * time.Minute
	quickTime = 15 * time.Minute
	// ablationTime is for the ablations' own run.
	ablationTime      = 100 * time.Minute
	quickAblationTime = 40 * time.Minute
	// openingTime is how long it takes to install Libra, run each input alone and measure what a request
	// costs, and quickOpeningTime the same with fewer inputs.
	openingTime      = 3*time.Minute + 30*time.Second
	quickOpeningTime = 2*time.Minute + 30*time.Second
	// vpaInstalls is how long it takes to start the autoscaler, and to stop it.
	vpaInstalls = 30 * time.Second
	// partsChange is how long it takes to set Libra's parts anew.
	partsChange = 35 * time.Second
	// closingTime is how long it takes to put everything back and write the report.
	closingTime      = 90 * time.Second
	quickClosingTime = time.Minute

	loadLow, loadMiddle, loadHigh, loadOver = 15, 40, 90, 120
)

// gaps is about how long it takes, from the end of a schedule, until its last requests are answered,
// everything is recorded and the next arm is ready, by load.
var gaps = map[int]time.Duration{loadLow: 1500 * time.Millisecond, loadMiddle: 1500 * time.Millisecond, loadHigh: 7 * time.Second, loadOver: 13 * time.Second}

// The least rank is left out last: the turns that goals are about, then those that show whether the goals
// can be judged, then the other parts, and the other arms.
const (
	rankBusy = iota + 1
	rankBusyAgain
	rankCore
	rankAgain
	rankForty
	rankFortyAgain
	rankBystanders
	rankMemory
	rankCost
	rankOwners
	rankVPA
	rankWeighted
	// rankMore is measured if others were quick enough to leave time.
	rankMore
)

// turns returns turns of these arms with as many blocks and the same rank, so that they stay together.
func turns(blocks, rank int, arms ...string) []turn {
	var all []turn
	for _, name := range arms {
		all = append(all, turn{arm: name, blocks: blocks, rank: rank})
	}
	return all
}

// plan returns everything that is worth measuring, in the order in which it is measured.
func plan(l lengths) timePlan {
	half := max(1, l.blocks/2)
	requests := func(load, pods, core, again int, others ...turn) combination {
		return combination{evaluation.PartRequests, load, pods, l.block, gaps[load], slices.Concat(
			turns(l.blocks, core, evaluation.Stock, evaluation.Libra, evaluation.NoLimits),
			turns(l.blocks, again, evaluation.Again), others)}
	}
	other := func(arm string, rank int) turn { return turn{arm: arm, blocks: half, rank: rank} }
	bystanders := func(load int, others ...turn) combination {
		return combination{evaluation.PartBystanders, load, 10, l.short, gaps[load], slices.Concat(
			turns(l.blocks, rankBystanders, evaluation.Stock, evaluation.Libra, evaluation.Again), others)}
	}
	memory := combination{evaluation.PartMemory, loadLow, 1, l.short, 6 * time.Second,
		turns(half, rankMemory, evaluation.Stock, evaluation.NoLimits, evaluation.VPA, evaluation.Libra, evaluation.Fits)}
	cost := combination{evaluation.PartCost, loadMiddle, 0, l.block * 3 / 4, gaps[loadMiddle],
		turns(half, rankCost, evaluation.Stock, evaluation.Libra, evaluation.NoLimits)}
	return timePlan{
		{phaseTen, 0, 45 * time.Second, 23 * time.Second, vpaLearns + vpaInstalls, []combination{
			requests(loadHigh, 10, rankBusy, rankBusyAgain,
				other(evaluation.Owners, rankOwners), other(evaluation.VPA, rankVPA), other(evaluation.NoLimitsWeighted, rankWeighted)),
			requests(loadMiddle, 10, rankCore, rankCore,
				other(evaluation.Owners, rankOwners), other(evaluation.VPA, rankMore), other(evaluation.NoLimitsWeighted, rankMore)),
			requests(loadOver, 10, rankCore, rankAgain,
				other(evaluation.Owners, rankMore), other(evaluation.VPA, rankMore), other(evaluation.NoLimitsWeighted, rankMore)),
			requests(loadLow, 10, rankCore, rankAgain,
				other(evaluation.Owners, rankMore+1), other(evaluation.OwnersNoIdle, rankMore+1), other(evaluation.VPA, rankMore+1), other(evaluation.NoLimitsWeighted, rankMore+1)),
			bystanders(loadHigh, other(evaluation.NoLimits, rankBystanders)), bystanders(loadMiddle, other(evaluation.NoLimits, rankMore)),
		}},
		{phaseMemory, 0, 40 * time.Second, 8 * time.Second, vpaLearnsAgain, []combination{memory}},
		{phaseForty, 0, 75 * time.Second, 52 * time.Second, 0, []combination{
			requests(loadHigh, 40, rankForty, rankFortyAgain), requests(loadOver, 40, rankForty, rankFortyAgain)}},
		{phaseCost, 0, time.Minute, 24 * time.Second, 0, []combination{cost}},
	}
}

// The phases. Each has its own functions, except that the forty are the ten of phaseTen and three times as
// many more.
const (
	phaseTen       = "ten functions"
	phaseForty     = "forty functions"
	phaseMemory    = "a function that is short of memory"
	phaseCost      = "ten functions with autoscaling"
	phaseAblations = "ablations"
	phaseTwoEach   = "two pods of each function"
	phaseFourEach  = "four pods of each function"
)

// ablationPlan returns the plan of the ablations. It measures what owners lend, at a load that leaves some
// of it; what decides which request goes first, on a full node; and the clamp, beside bystanders.
func ablationPlan(l lengths) timePlan {
	of := func(base string) (names []string) {
		for _, a := range ablations {
			if a.Base == base {
				names = append(names, a.Name)
			}
		}
		return names
	}
	ablations := func(load int, base string, others ...string) combination {
		return combination{evaluation.PartAblations, load, 10, l.block, gaps[load], slices.Concat(
			turns(l.blocks, rankCore, append([]string{evaluation.Stock, base}, others...)...),
			turns(l.blocks, rankAgain, of(base)...), turns(l.blocks, rankMore, evaluation.Again))}
	}
	return timePlan{{phaseAblations, 0, 80 * time.Second, 23 * time.Second, 0, []combination{
		ablations(loadHigh, evaluation.Libra, evaluation.NoLimits), ablations(loadMiddle, evaluation.Owners),
		{evaluation.PartBystanders, loadHigh, 10, l.short, gaps[loadHigh], slices.Concat(
			turns(l.blocks, rankBystanders, evaluation.Stock, evaluation.Libra, "libra_no_clamp"), turns(l.blocks, rankMore, evaluation.Again))},
	}}}
}

// only keeps the named parts and loads, and 10 or 40 pods only if they are among pods. It leaves out the
// arms in without.
func (p timePlan) only(parts []string, loads, pods []int, without []string) timePlan {
	var kept timePlan
	for _, ph := range p {
		var combinations []combination
		for _, c := range ph.combinations {
			c.arms = slices.DeleteFunc(slices.Clone(c.arms), func(t turn) bool { return slices.Contains(without, t.arm) })
			chosen := slices.Contains(pods, c.pods) || !slices.Contains(evaluationPods, c.pods)
			if slices.Contains(parts, c.part) && slices.Contains(loads, c.load) && chosen && len(c.arms) > 0 {
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
