package evaluation

import (
	"fmt"
	"math"

	"libra.dev/libra/loadtest/demo/report"
)

// The figures that LIBRA's paper gives (HPDC '23, section 8), by its own definitions.

// p99All is over all requests, as the paper's is.
var p99All = figure{name: "p99_all", title: "P99 of all requests", percentile: 99, of: tookAll}

// ofLoans returns a figure of the loans in a block: products of volume and time, as in
// the paper, and not the most that was lent.
func ofLoans(name string, of func(Loans) float64) figure {
	return figure{name: name, total: func(b Block) float64 {
		if b.Loans == nil {
			return none
		}
		return of(*b.Loans)
	}}
}

var (
	harvestedCPU      = ofLoans("harvested_core_seconds", func(l Loans) float64 { return l.Harvested.CoreSeconds })
	harvestedMemory   = ofLoans("harvested_mb_seconds", func(l Loans) float64 { return l.Harvested.MBSeconds })
	acceleratedCPU    = ofLoans("accelerated_core_seconds", func(l Loans) float64 { return l.Accelerated.CoreSeconds })
	acceleratedMemory = ofLoans("accelerated_mb_seconds", func(l Loans) float64 { return l.Accelerated.MBSeconds })
	idleCPU           = ofLoans("idle_core_seconds", func(l Loans) float64 { return l.Idle.CoreSeconds })
	idleMemory        = ofLoans("idle_mb_seconds", func(l Loans) float64 { return l.Idle.MBSeconds })
	safeguards        = ofLoans("safeguards", func(l Loans) float64 { return l.Safeguarded })
)

// reduction returns the share by which an arm's P99 is lower than stock's.
func (c *comparison) reduction(k combination, arm string) interval {
	r := c.ratio(k, arm, Stock, p99All)
	return interval{value: 1 - r.value, low: 1 - r.high, high: 1 - r.low}
}

// speedup returns the paper's speed-up, which is (t - t')/t for a request, where t is its
// time in stock and t' the arm's: the mean over requests, and that of the request that
// fares worst.
func (c *comparison) speedup(k combination, arm string) (mean interval, worst float64) {
	numbers := c.common(k, arm, Stock)
	mine, slices := c.answers(k, arm, numbers, false)
	stocks, _ := c.answers(k, Stock, numbers, false)
	var values column
	seen := map[int]bool{}
	worst = none
	for i, a := range mine {
		if stocks[i].took <= 0 {
			continue
		}
		v := (stocks[i].took - a.took) / stocks[i].took
		if values.add(v, a.slice); math.IsNaN(worst) || v < worst {
			worst = v
		}
		seen[a.slice] = true
	}
	if len(values) == 0 {
		return unmeasured, none
	}
	return intervalOf(values.figures(figure{}, c.drawsOf(k, numbers, slices)), len(seen)), worst
}

// utilisation returns the paper's utilisation: how much functions use of the CPU that
// there is for them, which is what the platform leaves.
func (c *comparison) utilisation(k combination, arm string) float64 {
	available := float64(c.Machine.Cores) - c.Platform
	if available <= 0 {
		return none
	}
	return c.coresOf(k, arm, func(u Usage) float64 { return u.Functions }) / available
}

// safeguardedShare returns how often the safeguard gave something back, per request.
func (c *comparison) safeguardedShare(k combination, arm string) float64 {
	requests := 0
	for _, b := range c.blocks[k][arm] {
		if b.Loans != nil {
			requests += len(b.Requests)
		}
	}
	if requests == 0 {
		return none
	}
	return c.value(k, arm, safeguards).value * float64(len(c.blocks[k][arm])) / float64(requests)
}

func (c *comparison) paperTable(k combination) table {
	t := table{Caption: "The paper's own figures", Head: []string{
		"policy", "P99 of all requests: lower than stock's by", "mean speed-up", "speed-up of the request that fares worst",
		"share of the available CPU that functions use", "over stock's", "restored by the safeguard, per request",
		"harvested, a block", "accelerated, a block", "in the pool and lent to nobody, a block",
	}}
	volume := func(arm string, cpu, memory figure) string {
		v := c.value(k, arm, cpu)
		if !v.measured() {
			return "-"
		}
		return report.Number("%.1f core-seconds", v.value) + ", " + report.Number("%.0f MB-seconds", c.value(k, arm, memory).value)
	}
	for _, arm := range c.armsOf(k) {
		used := c.utilisation(k, arm)
		row := []string{c.title(arm), "-", "-", "-", percentText(used), "-"}
		if arm != Stock && len(c.common(k, arm, Stock)) > 0 {
			mean, worst := c.speedup(k, arm)
			row = []string{c.title(arm), c.reduction(k, arm).percent(), mean.percent(), percentText(worst), percentText(used), ratioText(used / c.utilisation(k, Stock))}
		}
		t.add(append(row, percentText(c.safeguardedShare(k, arm)),
			volume(arm, harvestedCPU, harvestedMemory), volume(arm, acceleratedCPU, acceleratedMemory), volume(arm, idleCPU, idleMemory))...)
	}
	return t
}

// percent formats an interval of shares.
func (i interval) percent() string {
	switch {
	case !i.measured():
		return "-"
	case math.IsNaN(i.low):
		return percentText(i.value)
	}
	return fmt.Sprintf("%s (%s to %s)", percentText(i.value), percentText(i.low), percentText(i.high))
}
