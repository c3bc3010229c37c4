package evaluation

import (
	"fmt"
	"math"
	"strings"
)

// glance is what somebody sees who reads nothing else.
func (c *comparison) glance() section {
	s := section{Title: "At a glance"}
	faster := table{Caption: c.title(Stock) + " → " + c.title(Libra) + ", and without limits", Head: []string{
		"load", "short requests: half take at most", "computing requests: 99 of 100 take at most", "on average, times as long as alone", "slower than under stock by 10 % or more (noise)",
	}}
	var sure, worse, open []string
	for _, k := range c.of(PartRequests) {
		if !c.has(k, Libra) || !c.has(k, Stock) {
			continue
		}
		row := []string{k.String()}
		for _, shown := range []struct {
			figure, value figure
			what          string
			format        func(float64) string
		}{
			{p50TookShort, p50TookShort, "short requests (P50)", milliseconds},
			{p99Computing, p99Computing, "computing requests (P99)", milliseconds},
			{meanSlowdown, meanSlowdown, "the mean slow-down", times},
		} {
			r := c.ratio(k, Libra, Stock, shown.figure)
			cell := shown.format(c.value(k, Stock, shown.value).value) + " → " + shown.format(c.value(k, Libra, shown.value).value)
			if c.has(k, NoLimits) {
				cell += "; no limits " + shown.format(c.value(k, NoLimits, shown.value).value)
			}
			row = append(row, cell)
			said := fmt.Sprintf("%s at %s: %s of stock", shown.what, k, ratioText(r.value))
			switch {
			case !r.measured():
			case r.high < 1:
				sure = append(sure, said)
			case r.low > 1:
				worse = append(worse, said)
			default:
				open = append(open, said+between(r))
			}
		}
		faster.add(append(row, c.harmedText(k, Libra))...)
	}
	s.Tables = []table{faster, c.price()}
	if len(faster.Rows) == 0 {
		s.Text = []string{"Stock and Libra were not measured under the same load: nothing can be told."}
		return s
	}
	s.Text = []string{
		"Got faster: " + list(sure) + ".",
		"Got slower: " + list(worse) + ".",
		"Neither for sure: " + list(open) + ".",
	}
	return s
}

func between(i interval) string {
	if math.IsNaN(i.low) {
		return ""
	}
	return fmt.Sprintf(", which may be %s to %s", ratioText(i.low), ratioText(i.high))
}

func list(what []string) string {
	if len(what) == 0 {
		return "nothing"
	}
	return strings.Join(what, "; ")
}

// harmedText is which share of an arm's requests are slower than in stock, with stock again's.
func (c *comparison) harmedText(k combination, arm string) string {
	said := c.harmedShare(k, arm)
	if c.has(k, Again) {
		said += fmt.Sprintf(" (%s)", c.harmedShare(k, Again))
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

// price is what it cost whom.
func (c *comparison) price() table {
	t := table{Caption: "What it cost whom", Head: []string{"who", "load", "stock", "Libra", "Libra / stock (95 % interval)", "no limits / stock"}}
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

func libraCPU(u Usage) float64 { return u.Libra }

// coresOf is how much CPU was in use on average over an arm's blocks; NaN when there are none.
func (c *comparison) coresOf(k combination, arm string, of func(Usage) float64) float64 {
	used, passed := 0.0, 0.0
	for _, b := range c.blocks[k][arm] {
		used, passed = used+of(b.CPU), passed+b.Length.Seconds()
	}
	return used / passed
}

func (c *comparison) failedText(k combination, arm string) string {
	return fmt.Sprintf("%d of %d", c.failedOf(k, arm), c.requests(k, arm))
}
