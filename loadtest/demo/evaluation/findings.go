package evaluation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/demo/report"
)

// What Libra is to reach: P99 on the size-related workload against stock, and the
// slow-down of the harvested beyond the noise.
const (
	relatedP99Ratio = 0.6
	slowdownBeyond  = 0.02
)

// findings say where Libra does not reach what it is to, or the order of the policies is
// not the paper's, and what is on record of the requests that made the figure.
func (d Data) findings(c Comparison) []string {
	var found []string
	if v := c.of(Libra, Related); v.P99.Median > relatedP99Ratio {
		found = append(found, fmt.Sprintf("On the size-related workload, Libra's P99 is %s of stock's; it is to be at most %s. %s",
			report.Ratio(v.P99.Median), report.Ratio(relatedP99Ratio), d.slowest(Related)))
	}
	for _, w := range c.Workloads {
		libra := c.of(Libra, w).SlowdownP99
		beyond := libra
		if noise := c.Noise[w]; !math.IsNaN(noise.SlowdownP99) {
			beyond -= noise.SlowdownP99
		}
		if beyond > slowdownBeyond {
			found = append(found, fmt.Sprintf("On workload %s, P99 of the slow-down of harvested pairs is %s; of the same pairs without Libra, %s. %s",
				w, change(libra), c.Noise[w], d.slowed(c, w)))
		}
	}
	if disorder := d.disorder(c); disorder != "" {
		found = append(found, disorder)
	}
	return found
}

// slowest is what is on record of Libra's requests that took at least its P99.
func (d Data) slowest(workload string) string {
	of := func(policy string) Facts {
		return d.facts(policy, workload, func(run Run, r Result) bool {
			return r.DurationMS >= report.Percentile(run.milliseconds(""), 99)
		})
	}
	libra, stock := of(Libra), of(Stock)
	return fmt.Sprintf("Of its %d requests at or beyond P99: %s. Of stock's %d: %s.",
		libra.Requests, libra, stock.Requests, stock.unrecorded())
}

// slowed is what is on record of the pairs that were harvested and slowed down.
func (d Data) slowed(c Comparison, workload string) string {
	slow := map[input]bool{}
	for _, p := range c.of(Libra, workload).Pairs {
		if p.Harvested && p.Slowdown() > slowdownBeyond {
			slow[input{workload, p.Function, p.Input}] = true
		}
	}
	these := func(_ Run, r Result) bool { return slow[input{workload, r.Function, r.Input}] }
	lent := func(run Run, r Result) bool { return these(run, r) && !run.Outcomes[r.RequestID].Lent.IsZero() }
	libra, lending, stock := d.facts(Libra, workload, these), d.facts(Libra, workload, lent), d.facts(Stock, workload, these)
	return fmt.Sprintf("Of the %d requests of the %d pairs above %s: %s. Of those %d that lent: %s. In stock: %s.%s",
		libra.Requests, len(slow), change(slowdownBeyond), libra, lending.Requests, lending, stock.unrecorded(), libra.becauseOf(stock))
}

func (f Facts) String() string {
	return fmt.Sprintf("outside the pod %s of the response time, throttled %s of the time in the pod (%d on record), %s",
		share(f.Outside), share(f.Throttled), f.Observed, f.unrecorded())
}

// becauseOf says so when limits did not slow requests down, and a busier machine may have.
func (f Facts) becauseOf(stock Facts) string {
	const hardly = 0.02
	if f.Throttled < hardly && f.Outside < hardly && f.Queued <= stock.Queued && f.Others > stock.Others {
		return " So no limit and no queue held them up: beside them, others used more of the cores."
	}
	return ""
}

// unrecorded is what is known of stock's requests, too.
func (f Facts) unrecorded() string {
	return fmt.Sprintf("sent behind another of the function %s, beside other functions that used %s cores", share(f.Queued), report.Number("%.2f", f.Others))
}

// disorder is empty when the policies' P99 on the mixed workload come in the paper's order.
func (d Data) disorder(c Comparison) string {
	ours, ratios, same := c.order()
	if same {
		return ""
	}
	var words []string
	for _, p := range ours {
		words = append(words, fmt.Sprintf("%s (%s)", d.title(p), report.Ratio(ratios[p])))
	}
	noise := ""
	if again := c.of(Again, Mixed).P99; !math.IsNaN(again.Median) {
		noise = fmt.Sprintf(" Stock again has %s (%s to %s).", report.Ratio(again.Median), report.Ratio(again.Least), report.Ratio(again.Most))
	}
	return fmt.Sprintf("By P99 on the mixed workload, the policies come in the order %s; in the paper, in the order %s.%s %s",
		strings.Join(words, ", "), d.words(c.inPapersOrder()), noise, d.slowest(Mixed))
}

// order is that of the paper's policies by P99 on the mixed workload, and whether it is
// the paper's.
func (c Comparison) order() (policies []string, ratios map[string]float64, same bool) {
	ratios = map[string]float64{Stock: 1}
	for _, v := range c.Versus {
		if v.Workload == Mixed {
			ratios[v.Policy] = v.P99.Median
		}
	}
	papers := c.inPapersOrder()
	policies = slices.Clone(papers)
	slices.SortStableFunc(policies, func(a, b string) int { return cmp.Compare(ratios[a], ratios[b]) })
	return policies, ratios, slices.Equal(policies, papers)
}

// inPapersOrder are those of the paper's policies that were run on the mixed workload.
func (c Comparison) inPapersOrder() []string {
	var policies []string
	for _, p := range paperOrder {
		if p == Stock || !math.IsNaN(c.of(p, Mixed).P99.Median) {
			policies = append(policies, p)
		}
	}
	return policies
}

// words are the titles of policies.
func (d Data) words(policies []string) string {
	var titles []string
	for _, p := range policies {
		titles = append(titles, d.title(p))
	}
	return strings.Join(titles, ", ")
}

// change is a slow-down or a speed-up, with its sign.
func change(v float64) string { return report.Number("%+.1f %%", 100*v) }

func share(v float64) string { return report.Number("%.1f %%", 100*v) }
