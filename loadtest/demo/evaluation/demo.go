package evaluation

import (
	"fmt"
	"strings"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

// The demo's own figures. With its few requests, P95 says more than P99, which is one of them.
var (
	p95Waiting = figure{name: "p95_waiting", title: "P95 of waiting requests", percentile: 95, of: tookWaiting}
	meanTook   = figure{name: "mean", title: "mean", of: tookAll}
)

func tookWaiting(a answer) float64 {
	if a.computing {
		return none
	}
	return a.took
}

// The verdicts on a ratio to stock.
const (
	faster  = "faster"
	slower  = "slower"
	theSame = "the same"

	notKnown = string(stats.NotKnown)
)

// told says what can be told about an arm's figure over a base's. A ratio that is no further from 1 than the
// base's to itself, measured again, is neither faster nor slower.
func (c *comparison) told(k combination, arm, base, again string, f figure) string {
	r, noise, tolerance := c.ratio(k, arm, base, f), c.ratio(k, again, base, f), f.tolerance()
	switch {
	case !r.measured():
		return notKnown
	case r.high < 1 && r.beyond(noise):
		return faster
	case r.low > 1 && r.beyond(noise):
		return slower
	case r.low >= 1-tolerance && r.high <= 1+tolerance:
		return theSame
	}
	return notKnown
}

// demoRow is a figure in the demo's table.
type demoRow struct {
	what   string
	figure figure
}

var demoRows = []demoRow{
	{"functions that compute: half of the requests within", p50Computing},
	{"functions that compute: 95 of 100 within", p95Computing},
	{"functions that wait for others: 95 of 100 within", p95Waiting},
	{"somebody else's service: 95 of 100 within", bystanderP95},
}

// demoDocument returns the demo's report: one table that is understood at a glance, and then the details.
func (c *comparison) demoDocument() []section {
	sections := []section{c.demoGlance(), c.demoFunctions(), c.measured()}
	for _, k := range c.of(PartDemo) {
		sections = append(sections, c.load(k, "Requests: "+k.String()))
	}
	return append(sections, c.failuresSection(), c.method())
}

// demoGlance shows what got faster, what did not, and what it cost whom.
func (c *comparison) demoGlance() section {
	ratio := c.title(Libra) + " / " + c.title(Stock)
	t := table{Head: []string{"what", "node", c.title(Stock), c.title(Libra), c.title(NoLimits), ratio, c.title(Libra) + " is"}}
	for _, row := range demoRows {
		what := row.what
		for _, k := range c.of(PartDemo) {
			t.add(what, busyText(k), milliseconds(c.value(k, Stock, row.figure).value), milliseconds(c.value(k, Libra, row.figure).value),
				milliseconds(c.value(k, NoLimits, row.figure).value), c.ratio(k, Libra, Stock, row.figure).String(), c.told(k, Libra, Stock, Again, row.figure))
			what = ""
		}
	}
	what := "CPU of Libra's own parts, cores"
	for _, k := range c.of(PartDemo) {
		before, after := c.coresOf(k, Stock, libraCPU), c.coresOf(k, Libra, libraCPU)
		t.add(what, busyText(k), cores(before), cores(after), cores(c.coresOf(k, NoLimits, libraCPU)), "-", report.Number("%+.2f cores", after-before))
		what = ""
	}
	s := section{Title: "What got faster, what did not, and what it cost whom", brief: true, Tables: []table{t}}
	if len(c.of(PartDemo)) == 0 {
		s.Text = []string{"Nothing was measured."}
		return s
	}
	for _, k := range c.of(PartDemo) {
		s.Text = append(s.Text, fmt.Sprintf("With the node %s, %s.", busyText(k), c.functionsTold(k)))
	}
	s.Text = append(s.Text, c.failedTold(), fmt.Sprintf(
		"Faster and slower: the whole 95 %% interval, which is in parentheses, is on that side of 1, and the ratio is further from 1 than that of %s measured again. The same: the interval is within 5 %% of 1. Everything else is %s.", c.title(Stock), notKnown))
	for _, left := range c.Unmeasured {
		s.Text = append(s.Text, "Not measured: "+left)
	}
	return s
}

// busyText says how busy a node is.
func busyText(k combination) string { return fmt.Sprintf("%d %% busy", k.load) }

// failedTold says how many requests failed, and under which arms.
func (c *comparison) failedTold() string {
	failed := map[string]int{}
	for _, f := range c.failures() {
		failed[f.Arm]++
	}
	if len(failed) == 0 {
		return "No request failed."
	}
	var said []string
	for _, a := range c.Arms {
		if n := failed[a.Name]; n > 0 {
			said = append(said, fmt.Sprintf("%d under %s", n, a.Title))
		}
	}
	return "Failed requests, including those to somebody else's service: " + strings.Join(said, ", ") + "."
}

// functionsTold groups the functions by what can be told of them.
func (c *comparison) functionsTold(k combination) string {
	names := map[string][]string{}
	for _, name := range c.functions(k) {
		told := c.told(k, Libra, Stock, Again, meanTook.ofFunction(name))
		names[told] = append(names[told], name)
	}
	var said []string
	for _, told := range []string{faster, slower, theSame, notKnown} {
		if of := names[told]; of != nil {
			said = append(said, told+": "+strings.Join(of, ", "))
		} else if told == slower {
			said = append(said, "slower: none")
		}
	}
	return strings.Join(said, "; ")
}

// demoFunctions shows each function by itself.
func (c *comparison) demoFunctions() section {
	t := table{Caption: "How long requests to each function take on average", Head: []string{
		"function", "mostly", "node", "requests", c.title(Stock), c.title(Libra), c.title(NoLimits), c.title(Libra) + " / " + c.title(Stock), c.title(Libra) + " is", c.title(Again) + " / " + c.title(Stock)}}
	seen := map[string]bool{}
	for _, in := range c.Functions {
		if seen[in.Name] {
			continue
		}
		seen[in.Name] = true
		mostly := "computes"
		if in.Waits {
			mostly = "waits"
		}
		f := meanTook.ofFunction(in.Name)
		for _, k := range c.of(PartDemo) {
			t.add(in.Name, mostly, busyText(k), c.calls(k, Libra, in.Name), milliseconds(c.value(k, Stock, f).value), milliseconds(c.value(k, Libra, f).value),
				milliseconds(c.value(k, NoLimits, f).value), c.ratio(k, Libra, Stock, f).String(), c.told(k, Libra, Stock, Again, f), ratioText(c.ratio(k, Again, Stock, f).value))
		}
	}
	return section{Title: "Function by function", Tables: []table{t}}
}

// demoResults returns the demo's results for machines.
func (c *comparison) demoResults() report.Results {
	m := map[string]float64{
		"failed_requests":    float64(len(c.failures())),
		"container_restarts": float64(c.Restarts),
		"seconds_total":      c.Elapsed.Seconds(),
	}
	unknown := 0
	for _, k := range c.of(PartDemo) {
		for _, row := range demoRows {
			if c.told(k, Libra, Stock, Again, row.figure) == notKnown {
				unknown++
			}
			for _, arm := range c.armsOf(k) {
				name := fmt.Sprintf("%s_%s_%d", row.figure.name, arm, k.load)
				m[name+"_ms"] = c.value(k, arm, row.figure).value
				if r := c.ratio(k, arm, Stock, row.figure); arm != Stock && r.measured() {
					m[name], m[name+"_low"], m[name+"_high"] = r.value, r.low, r.high
				}
			}
		}
		m[fmt.Sprintf("libra_cores_%d", k.load)] = c.coresOf(k, Libra, libraCPU)
		m[fmt.Sprintf("requests_%d", k.load)] = float64(c.requests(k, Libra))
	}
	m["not_known"] = float64(unknown)
	return report.Results{Machine: c.Machine.About, Commit: c.Commit, Seed: c.Seed, Metrics: m}
}
