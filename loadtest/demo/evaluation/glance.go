package evaluation

import (
	"fmt"
	"math"
	"strings"
)

// glance returns the section for readers who read nothing else.
func (c *comparison) glance() section {
	s := section{Title: "At a glance", brief: true}
	shown := []struct {
		figure       figure
		what, column string
		format       func(float64) string
	}{
		{p50TookShort, "P50 of short requests", "short requests: half take at most", milliseconds},
		{p99Computing, "P99 of computing requests", "computing requests: 99 of 100 take at most", milliseconds},
		{meanSlowdown, "mean slow-down", "on average, times as long as alone", times},
	}
	t := table{Caption: c.title(Stock) + " → " + c.title(Libra), Head: []string{"load"}}
	for _, f := range shown {
		t.Head = append(t.Head, f.column)
	}
	t.Head = append(t.Head, "slower than in stock by 10 % or more")
	faster, slower, open := make([][]string, len(shown)), make([][]string, len(shown)), make([][]string, len(shown))
	for _, k := range c.of(PartRequests) {
		if !c.has(k, Libra) || !c.has(k, Stock) {
			continue
		}
		row := []string{k.String()}
		for i, f := range shown {
			row = append(row, c.change(k, f.figure, f.format))
			r := c.ratio(k, Libra, Stock, f.figure)
			said := fmt.Sprintf("%s of %s's", ratioText(r.value), c.title(Stock))
			at := fmt.Sprintf(" (%s)", k)
			switch {
			case !r.measured():
			case c.less(k, Libra, f.figure, 0):
				faster[i] = append(faster[i], said+at)
			case c.more(k, Libra, f.figure, 0):
				slower[i] = append(slower[i], said+at)
			default:
				open[i] = append(open[i], said+between(r)+at)
			}
		}
		t.add(append(row, c.harmedText(k, Libra))...)
	}
	s.Tables = []table{t, c.price()}
	s.draw = func() ([]figureDrawn, error) {
		f, shown, err := c.glancePlot()
		if !shown {
			return nil, err
		}
		return []figureDrawn{f}, err
	}
	if len(t.Rows) == 0 {
		s.Text = []string{fmt.Sprintf("%s and %s were not measured under the same load, so they cannot be compared.", c.title(Stock), c.title(Libra))}
		return s
	}
	for _, said := range []struct {
		begin string
		of    [][]string
	}{{"What got faster", faster}, {"What got slower", slower}, {"What is not certain", open}} {
		var figures []string
		for i, at := range said.of {
			if len(at) > 0 {
				figures = append(figures, shown[i].what+": "+strings.Join(at, ", "))
			}
		}
		if figures == nil {
			figures = []string{"Nothing"}
		}
		s.Text = append(s.Text, said.begin+". "+strings.Join(figures, "; ")+".")
	}
	s.Text = append(s.Text, "What differs from stock by less than stock again does is not certain, either. The 95 % interval of a ratio follows it in parentheses; a question mark says that the interval is too wide to rely on the ratio.")
	return s
}

// change shows a figure with stock, with Libra, and without limits.
func (c *comparison) change(k combination, f figure, format func(float64) string) string {
	said := format(c.value(k, Stock, f).value) + " → " + format(c.value(k, Libra, f).value)
	if c.has(k, NoLimits) {
		said += fmt.Sprintf(" (%s %s)", c.title(NoLimits), format(c.value(k, NoLimits, f).value))
	}
	return said
}

func between(i interval) string {
	if math.IsNaN(i.low) {
		return ""
	}
	return fmt.Sprintf(", which may be %s to %s", ratioText(i.low), ratioText(i.high))
}

// harmedText returns the share of an arm's requests that are slower than in stock, and
// stock again's.
func (c *comparison) harmedText(k combination, arm string) string {
	said := c.harmedShare(k, arm)
	if c.has(k, Again) {
		said += fmt.Sprintf(" (%s %s)", c.title(Again), c.harmedShare(k, Again))
	}
	return said
}

func (c *comparison) harmedShare(k combination, arm string) string {
	harmed, of := c.harmed(k, arm)
	if of == 0 {
		return "-"
	}
	return percentText(float64(harmed) / float64(of))
}

// price shows what it cost whom.
func (c *comparison) price() table {
	t := table{Caption: "What it cost whom", Head: []string{
		"who", "load", c.title(Stock), c.title(Libra), c.title(Libra) + " / " + c.title(Stock), c.title(NoLimits) + " / " + c.title(Stock),
	}}
	row := func(who string, k combination, f figure, format func(float64) string) {
		if r := c.ratio(k, Libra, Stock, f); r.measured() {
			t.add(who, k.String(), format(c.value(k, Stock, f).value), format(c.value(k, Libra, f).value), r.marked(f), c.ratio(k, NoLimits, Stock, f).marked(f))
		}
	}
	for _, k := range c.of(PartBystanders) {
		row("a service that did not opt in: P95", k, bystanderP95, milliseconds)
		row("a pod that spins: core-seconds a block", k, bystanderCPU, cores)
	}
	for _, k := range c.of(PartRequests) {
		if worst := c.ratio(k, Libra, Stock, worstP99); worst.measured() {
			f := worstP99.ofFunction(worst.function)
			t.add("the function that fares worst, "+worst.function+": P99", k.String(),
				milliseconds(c.value(k, Stock, f).value), milliseconds(c.value(k, Libra, f).value), worst.marked(worstP99), c.ratio(k, NoLimits, Stock, f).marked(f))
		}
	}
	for _, k := range c.of(PartCost) {
		row("who pays for pods: pod-seconds a block", k, podSeconds, func(v float64) string { return fmt.Sprintf("%.0f", v) })
	}
	for _, k := range c.of(PartRequests) {
		if c.has(k, Libra) {
			t.add("the node: cores that Libra's own parts use", k.String(), cores(c.coresOf(k, Stock, libraCPU)), cores(c.coresOf(k, Libra, libraCPU)), "-", "-")
		}
	}
	for _, k := range c.of(PartMemory) {
		if c.has(k, Libra) && c.has(k, Stock) {
			t.add("requests that need more memory than the limit: failed", k.String(), c.failedText(k, Stock), c.failedText(k, Libra), "-", "-")
		}
	}
	return t
}

func libraCPU(u Usage) float64  { return u.Libra }
func agentsCPU(u Usage) float64 { return u.Agents }

// coresOf returns how much CPU was in use on average over an arm's blocks; NaN if there
// are none, or if it could not be read.
func (c *comparison) coresOf(k combination, arm string, of func(Usage) float64) float64 {
	if c.Machine.Cores == 0 {
		return none
	}
	used, passed := 0.0, 0.0
	for _, b := range c.blocks[k][arm] {
		used, passed = used+of(b.CPU), passed+b.Length.Seconds()
	}
	return used / passed
}

// weighed returns how many requests of an arm's blocks were weighed, and how soon.
func (c *comparison) weighed(k combination, arm string) (sum Weighed) {
	for _, b := range c.blocks[k][arm] {
		if b.Weighed != nil {
			sum.Requests += b.Weighed.Requests
			sum.Within5MS += b.Weighed.Within5MS
			sum.Within10MS += b.Weighed.Within10MS
		}
	}
	return sum
}

func (c *comparison) failedText(k combination, arm string) string {
	return fmt.Sprintf("%d of %d", c.failedOf(k, arm), c.requests(k, arm))
}
