package evaluation

import (
	"fmt"
	"slices"

	"libra.dev/libra/loadtest/bench/stats"
)

// goal is a line of section 8 of the design: a figure of Libra's over another arm's.
type goal struct {
	k        combination
	figure   figure
	arm      string
	baseline string
	bound    stats.Goal
	// without is an arm that lacks something that arm has. The goal is then about how much of its
	// gap to the baseline arm closes. Empty otherwise.
	without string
}

// goals are all goals, in the order of the report.
var goals = makeGoals()

func makeGoals() []goal {
	var all []goal
	add := func(part string, load, pods int, f figure, baseline string, bound float64) {
		all = append(all, goal{k: combination{part, load, pods}, figure: f, arm: Libra, baseline: baseline, bound: stats.Goal{Bound: bound, AtLeast: f.name == bystanderCPU.name}})
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
	for _, f := range []figure{meanSlowdown, p95Computing, p99Computing} {
		all = append(all, goal{k: combination{PartRequests, 15, 10}, figure: f, arm: Owners, baseline: NoLimits, bound: stats.Goal{Bound: 0.5, AtLeast: true}, without: OwnersNoIdle})
	}
	return all
}

// title says what the goal is about.
func (g goal) title(c *comparison) string {
	if g.without != "" {
		return fmt.Sprintf("gap of %s closed by %s, %s", c.title(g.without), c.title(g.arm), g.figure.title)
	}
	return g.figure.title
}

func (g goal) wanted() string {
	if g.bound.AtLeast {
		return fmt.Sprintf("at least %.2f", g.bound.Bound)
	}
	return fmt.Sprintf("at most %.2f", g.bound.Bound)
}

// judged is a goal with its measurement.
type judged struct {
	goal
	ratio   interval
	noise   interval // the figure of stock again over stock
	verdict stats.Verdict
	why     string // why it is not known
}

// judge says which goals hold. A goal is not known if the hypervisor took too much CPU from one of
// its arms.
func (c *comparison) judge() []judged {
	var all []judged
	for _, g := range goals {
		j := judged{goal: g, noise: c.ratio(g.k, Again, Stock, g.figure)}
		if g.without == "" {
			j.ratio = c.ratio(g.k, g.arm, g.baseline, g.figure)
			j.verdict, j.why = g.bound.Ratio(j.ratio.plain(), j.noise.plain(), g.figure.tolerance())
		} else if j.ratio = c.closes(g.k, g.arm, g.without, g.baseline, g.figure); !j.ratio.measured() {
			continue // it takes a run of its own
		} else {
			j.verdict, j.why = g.bound.Absolute(j.ratio.plain())
		}
		if why := c.disturbed(g.k, g.arm, g.baseline, g.without); why != "" && j.ratio.measured() {
			j.verdict, j.why = stats.NotKnown, why
		}
		all = append(all, j)
	}
	return all
}

// closes returns how much of the gap between the arm without something and the baseline arm
// closes: 1 is all of it, and 0 nothing. It is unmeasured where there is no gap.
func (c *comparison) closes(k combination, arm, without, base string, f figure) interval {
	both := c.common(k, arm, base)
	numbers := slices.DeleteFunc(c.numbers(k, without), func(n int) bool { return !slices.Contains(both, n) })
	if len(numbers) == 0 {
		return unmeasured
	}
	has, lacks, wanted := c.sampled(k, arm, numbers, f), c.sampled(k, without, numbers, f), c.sampled(k, base, numbers, f)
	closed := make([]float64, len(has))
	for i := range closed {
		closed[i] = none
		if lacks[i] > wanted[i] {
			closed[i] = (lacks[i] - has[i]) / (lacks[i] - wanted[i])
		}
	}
	return intervalOf(closed, c.units(k, arm, numbers, f))
}

// disturbed says in how many blocks of some arms the hypervisor took too much; empty if in none.
func (c *comparison) disturbed(k combination, arms ...string) string {
	n := 0
	for _, arm := range arms {
		for _, b := range c.blocks[k][arm] {
			if b.Disturbed() {
				n++
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("the hypervisor took too much of the CPU in %d of the blocks", n)
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
