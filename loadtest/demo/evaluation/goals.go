package evaluation

import (
	"fmt"

	"libra.dev/libra/loadtest/bench/stats"
)

// goal is a line of section 8 of the design: a figure of Libra's over another arm's.
type goal struct {
	k        combination
	figure   figure
	arm      string
	baseline string
	bound    stats.Goal
}

// goals are all of them, in the order of the report.
var goals = makeGoals()

func makeGoals() []goal {
	var all []goal
	add := func(part string, load, pods int, f figure, baseline string, bound float64) {
		all = append(all, goal{combination{part, load, pods}, f, Libra, baseline, stats.Goal{Bound: bound, AtLeast: f.name == bystanderCPU.name}})
	}
	for _, load := range []int{15, 40} {
		add(PartRequests, load, 10, p99Computing, NoLimits, 1.03)
		add(PartRequests, load, 10, p95Computing, NoLimits, 1.03)
	}
	for _, full := range []struct {
		load, pods int
		mean       float64
	}{{90, 10, 0.80}, {90, 40, 0.88}, {120, 10, 0.70}, {120, 40, 0.85}} {
		add(PartRequests, full.load, full.pods, meanSlowdown, NoLimits, full.mean)
		add(PartRequests, full.load, full.pods, p50Short, NoLimits, 0.80)
		add(PartRequests, full.load, full.pods, p99Computing, NoLimits, 1)
		add(PartRequests, full.load, full.pods, worstP99, NoLimits, 1.50)
	}
	for _, load := range []int{40, 90} {
		add(PartBystanders, load, 10, bystanderP95, Stock, 1.05)
		add(PartBystanders, load, 10, bystanderCPU, Stock, 0.98)
	}
	return all
}

func (g goal) wanted() string {
	if g.bound.AtLeast {
		return fmt.Sprintf("at least %.2f", g.bound.Bound)
	}
	return fmt.Sprintf("at most %.2f", g.bound.Bound)
}

// judged is a goal with what was measured.
type judged struct {
	goal
	ratio   interval
	noise   interval // the figure of stock again over stock
	verdict stats.Verdict
	why     string // it is not known
}

// judge says which goals hold. Where the hypervisor took CPU from what one is about, it is not known.
func (c *comparison) judge() []judged {
	var all []judged
	for _, g := range goals {
		j := judged{goal: g, ratio: c.ratio(g.k, g.arm, g.baseline, g.figure), noise: c.ratio(g.k, Again, Stock, g.figure)}
		j.verdict, j.why = g.bound.Ratio(j.ratio.plain(), j.noise.plain(), g.figure.tolerance())
		if n := c.disturbed(g.k, g.arm, g.baseline); n > 0 && j.ratio.measured() {
			j.verdict, j.why = stats.NotKnown, fmt.Sprintf("the hypervisor took more than %s of the CPU in %d of the blocks", percentText(mostStolen), n)
		}
		all = append(all, j)
	}
	return all
}

// disturbed is in how many blocks of some arms the hypervisor took too much.
func (c *comparison) disturbed(k combination, arms ...string) int {
	n := 0
	for _, arm := range arms {
		for _, b := range c.blocks[k][arm] {
			if b.Disturbed() {
				n++
			}
		}
	}
	return n
}

func undecided(all []judged) int {
	n := 0
	for _, j := range all {
		if j.verdict == stats.NotKnown {
			n++
		}
	}
	return n
}
