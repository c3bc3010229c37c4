package evaluation

import (
	"fmt"
	"slices"

	"libra.dev/libra/loadtest/demo/report"
)

// load returns the section about the functions' requests in a combination.
func (c *comparison) load(k combination, title string) section {
	s := section{Title: title, draw: func() ([]figureDrawn, error) { return c.loadPlots(k) }}
	s.Text = c.stealTold(k)
	s.Tables = []table{c.figuresTable(k), c.usageTable(k), c.blocksTable(k)}
	for _, base := range []string{NoLimits, Stock} {
		if c.has(k, base) {
			s.Tables = append(s.Tables, c.ratiosTable(k, base))
		}
	}
	s.Tables = append(s.Tables, c.paperTable(k), c.functionsTable(k), c.makersTable(k))
	return s
}

func (c *comparison) figuresTable(k combination) table {
	t := table{Caption: "Requests", Head: []string{
		"policy", "blocks", "requests", "failed", "computing: P50", "P95", "P99", "short: P50", "P95", "P99",
		"mean slow-down", "computing: slow-down P50", "P95", "P99", "short: slow-down P50", "P95", "P99", "goodput",
	}}
	if c.has(k, Stock) {
		t.Head = append(t.Head, "slower than stock by 10 %")
	}
	for _, arm := range c.armsOf(k) {
		row := []string{c.title(arm), fmt.Sprint(len(c.blocks[k][arm])), fmt.Sprint(c.requests(k, arm)), fmt.Sprint(c.failedOf(k, arm))}
		for _, f := range []figure{p50Computing, p95Computing, p99Computing, p50TookShort, p95TookShort, p99TookShort} {
			row = append(row, milliseconds(c.value(k, arm, f).value))
		}
		for _, f := range []figure{meanSlowdown, p50SlowdownComputing, p95SlowdownComputing, p99SlowdownComputing, p50Short, p95SlowdownShort, p99SlowdownShort} {
			row = append(row, times(c.value(k, arm, f).value))
		}
		row = append(row, percentText(c.value(k, arm, goodput).value))
		switch {
		case arm == Stock:
			row = append(row, "-")
		case c.has(k, Stock):
			row = append(row, c.harmedShare(k, arm))
		}
		t.add(row...)
	}
	return t
}

func (c *comparison) usageTable(k combination) table {
	t := table{Caption: "CPU in use, cores on average over the blocks", Head: []string{"policy", "node", "of the node", "functions", "Libra", "platform, with the request path"}}
	parts := []func(Usage) float64{
		func(u Usage) float64 { return u.Functions }, libraCPU, func(u Usage) float64 { return u.Platform },
	}
	// Not every machine has a hypervisor that takes CPU, and not every recorded run measured
	// that, or the agents' use.
	if slices.ContainsFunc(c.Blocks, func(b Block) bool { return b.CPU.Agents > 0 }) {
		t.Head, parts = append(t.Head, "Libra's node agents"), append(parts, agentsCPU)
	}
	if slices.ContainsFunc(c.Blocks, func(b Block) bool { return b.CPU.Stolen > 0 }) {
		t.Head, parts = append(t.Head, "taken by the hypervisor"), append(parts, func(u Usage) float64 { return u.Stolen })
	}
	for _, arm := range c.armsOf(k) {
		node := c.coresOf(k, arm, func(u Usage) float64 { return u.Node })
		of := "-"
		if c.Machine.Cores > 0 {
			of = percentText(node / float64(c.Machine.Cores))
		}
		row := []string{c.title(arm), cores(node), of}
		for _, part := range parts {
			row = append(row, cores(c.coresOf(k, arm, part)))
		}
		t.add(row...)
	}
	return t
}

func (c *comparison) ratiosTable(k combination, base string) table {
	figures := []figure{p99Computing, p95Computing, p50Computing, p50Short, p99SlowdownComputing, meanSlowdown, worstP99}
	t := table{Caption: "Over " + c.title(base) + ", with 95 % intervals", Head: []string{"policy"}}
	for _, f := range figures {
		t.Head = append(t.Head, f.title)
	}
	if base == Stock {
		t.Head = append(t.Head, "share of P99's gap between stock and no limits that is closed")
	}
	for _, arm := range c.armsOf(k) {
		if arm == base || len(c.common(k, arm, base)) == 0 {
			continue
		}
		row := []string{c.title(arm)}
		for _, f := range figures {
			r := c.ratio(k, arm, base, f)
			row = append(row, r.marked(f)+of(r))
		}
		if base == Stock {
			row = append(row, c.gapClosed(k, arm))
		}
		t.add(row...)
	}
	return t
}

// gapClosed returns how much of the gap from stock's P99 to that without limits an arm
// closes.
func (c *comparison) gapClosed(k combination, arm string) string {
	closed := c.closes(k, arm, Stock, NoLimits, p99Computing)
	if unlimited := c.ratio(k, NoLimits, Stock, p99Computing); arm == NoLimits || arm == Again || !closed.measured() || unlimited.value >= 1 {
		return "-"
	}
	return percentText(closed.value)
}

func (c *comparison) functionsTable(k combination) table {
	t := table{Caption: "P99 of each function in stock, and its ratio to stock", Head: []string{"function", "requests", "stock"}}
	var arms []string
	for _, arm := range c.armsOf(k) {
		if arm != Stock && c.has(k, Stock) {
			arms = append(arms, arm)
			t.Head = append(t.Head, c.title(arm))
		}
	}
	for _, name := range c.functions(k) {
		f := worstP99.ofFunction(name)
		row := []string{name, c.calls(k, Stock, name), milliseconds(c.value(k, Stock, f).value)}
		for _, arm := range arms {
			row = append(row, c.ratio(k, arm, Stock, f).marked(f))
		}
		t.add(row...)
	}
	return t
}

// calls returns how many requests to a function an arm had.
func (c *comparison) calls(k combination, arm, function string) string {
	n := 0
	for _, b := range c.blocks[k][arm] {
		for _, r := range b.Requests {
			if r.Function == function {
				n++
			}
		}
	}
	return fmt.Sprint(n)
}

// makersTable shows which request makes each percentile.
func (c *comparison) makersTable(k combination) table {
	figures := []figure{p50Computing, p95Computing, p99Computing, p50Short, p99SlowdownComputing}
	t := table{Caption: "Function and input of the request at each percentile", Head: []string{"policy"}}
	for _, f := range figures {
		t.Head = append(t.Head, f.title)
	}
	for _, arm := range c.armsOf(k) {
		row := []string{c.title(arm)}
		for _, f := range figures {
			cell := "-"
			if a, ok := c.maker(k, arm, f); ok {
				cell = fmt.Sprintf("%s, input %d", a.Function, a.Input)
				if alone, ok := c.alone[input{a.Function, a.Input}]; ok {
					cell += fmt.Sprintf(" (alone %s)", milliseconds(alone.Milliseconds))
				}
				if a.failed {
					cell += ", which failed"
				}
			}
			row = append(row, cell)
		}
		t.add(row...)
	}
	return t
}

// byLoad shows how the policies fare as the load grows.
func (c *comparison) byLoad() section {
	t := table{Caption: "P99 of computing requests / mean slow-down", Head: []string{"load"}}
	var arms []string
	for _, a := range c.Arms {
		for _, k := range c.of(PartRequests) {
			if c.has(k, a.Name) {
				arms = append(arms, a.Name)
				t.Head = append(t.Head, a.Title)
				break
			}
		}
	}
	for _, k := range c.of(PartRequests) {
		row := []string{k.String()}
		for _, arm := range arms {
			cell := "-"
			if c.has(k, arm) {
				cell = milliseconds(c.value(k, arm, p99Computing).value) + " / " + times(c.value(k, arm, meanSlowdown).value)
			}
			row = append(row, cell)
		}
		t.add(row...)
	}
	return section{Title: "As the load grows", Tables: []table{t}, draw: c.byLoadPlots}
}

func (c *comparison) bystanders() []section {
	t := table{Caption: "A service, and a pod that spins, in another namespace; neither is opted in", Head: []string{
		"load", "policy", "blocks", "requests", "service: P50", "P95", "P95 / stock", "spinning pod: core-seconds a block", "CPU / stock"}}
	for _, k := range c.of(PartBystanders) {
		for _, arm := range c.armsOf(k) {
			requests := 0
			for _, b := range c.blocks[k][arm] {
				if b.Bystander != nil {
					requests += len(b.Bystander.Requests)
				}
			}
			p95, cpu := "1", "1"
			if arm != Stock {
				p95, cpu = c.ratio(k, arm, Stock, bystanderP95).marked(bystanderP95), c.ratio(k, arm, Stock, bystanderCPU).marked(bystanderCPU)
			}
			t.add(k.String(), c.title(arm), fmt.Sprint(len(c.blocks[k][arm])), fmt.Sprint(requests),
				milliseconds(c.value(k, arm, bystanderP50).value), milliseconds(c.value(k, arm, bystanderP95).value), p95,
				report.Number("%.1f", c.value(k, arm, bystanderCPU).value), cpu)
		}
	}
	return unlessEmpty(section{Title: "Bystanders", Tables: []table{t}})
}

func (c *comparison) cost() []section {
	t := table{Caption: "With autoscaling", Head: []string{
		"load", "policy", "blocks", "pod-seconds a block", "pod-seconds / stock", "cold starts a block", "computing: P95", "P95 / stock", "failed"}}
	for _, k := range c.of(PartCost) {
		for _, arm := range c.armsOf(k) {
			pods, p95 := "1", "1"
			if arm != Stock {
				pods, p95 = c.ratio(k, arm, Stock, podSeconds).marked(podSeconds), c.ratio(k, arm, Stock, p95Computing).marked(p95Computing)
			}
			t.add(k.String(), c.title(arm), fmt.Sprint(len(c.blocks[k][arm])), report.Number("%.0f", c.value(k, arm, podSeconds).value), pods,
				report.Number("%.1f", c.value(k, arm, coldStarts).value), milliseconds(c.value(k, arm, p95Computing).value), p95, c.failedText(k, arm))
		}
	}
	return unlessEmpty(section{Title: "Pods that autoscaling needs", Tables: []table{t},
		Text: []string{"Requests that end sooner need fewer pods."}})
}

func (c *comparison) memory() []section {
	t := table{Caption: "A function whose memory limit fits the usual input, but not the rare large one", Head: []string{
		"load", "policy", "blocks", "failed", "OOM kills", "P50", "P50 over a limit that fits", "P95", "P95 over a limit that fits"}}
	for _, k := range c.of(PartMemory) {
		for _, arm := range c.armsOf(k) {
			row := []string{k.String(), c.title(arm), fmt.Sprint(len(c.blocks[k][arm])), c.failedText(k, arm),
				report.Number("%.0f", c.value(k, arm, oomKills).value*float64(len(c.blocks[k][arm])))}
			for _, f := range []figure{p50All, p95All} {
				fits := "1"
				if arm != Fits {
					fits = c.ratio(k, arm, Fits, f).marked(f)
				}
				row = append(row, milliseconds(c.value(k, arm, f).value), fits)
			}
			t.add(row...)
		}
	}
	return unlessEmpty(section{Title: "Memory", Tables: []table{t}})
}

func unlessEmpty(s section) []section {
	if len(s.Tables[0].Rows) == 0 {
		return nil
	}
	return []section{s}
}
