package evaluation

import (
	"fmt"
	"strings"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

// section is a part of the report, for the page and for Markdown alike.
type section struct {
	Title  string
	Text   []string
	Tables []table
	brief  bool                          // also for a terminal
	draw   func() ([]figureDrawn, error) // nil without plots
}

type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

func (t *table) add(cells ...string) { t.Rows = append(t.Rows, cells) }

// document returns the whole report: first what everybody wants to know, last how it was
// measured.
func (c *comparison) document() []section {
	sections := c.worth()
	// With ablations alone, no goal can be judged.
	if len(sections) == 0 || len(c.of(PartRequests)) > 0 {
		sections = append([]section{c.glance(), c.goalsSection(), c.harmedAndUndecided()}, sections...)
	}
	sections = append(sections, c.measured())
	if len(c.of(PartRequests)) > 0 {
		sections = append(sections, c.byLoad())
	}
	for _, k := range c.of(PartRequests) {
		sections = append(sections, c.load(k, "Requests: "+k.String()))
	}
	sections = append(sections, c.bystanders()...)
	sections = append(sections, c.cost()...)
	sections = append(sections, c.memory()...)
	for _, k := range c.of(PartAblations) {
		sections = append(sections, c.load(k, "Libra without some of its parts: "+k.String()))
	}
	return append(sections, c.failuresSection(), c.method())
}

func (c *comparison) goalsSection() section {
	all := c.judge()
	count := map[stats.Verdict]int{}
	t := table{Head: []string{"load", "figure", "against", "wanted", "measured (95 % interval)", "stock again / stock", "verdict"}}
	for _, j := range all {
		count[j.verdict]++
		t.add(j.k.String(), j.title(c)+of(j.ratio), c.title(j.baseline), j.wanted(), j.ratio.String(), ratioText(j.noise.value), stats.Said(j.verdict, j.why))
	}
	return section{Title: "Libra's goals", brief: true, Text: []string{
		fmt.Sprintf("Of %d goals, %d hold, %d do not, and %d are not known.", len(all), count[stats.Holds], count[stats.DoesNotHold], count[stats.NotKnown]),
		fmt.Sprintf("A goal holds when the measured ratio meets its bound and the measurement is certain: the ratio's 95 %% interval is no wider than ±5 %% (±10 %% for a P99), stock measured again differs from stock by no more than that, and in no block of the policies that it compares did the hypervisor take more than %s. A goal without a certain measurement is not known, however good or bad the ratio looks.", mostStolenText),
	}, Tables: []table{t}}
}

// of names the function of a worst figure.
func of(i interval) string {
	if i.function == "" {
		return ""
	}
	return " (" + i.function + ")"
}

// harmedAndUndecided shows what a reader must not miss.
func (c *comparison) harmedAndUndecided() section {
	harmed := table{Caption: "Harmed: certainly slower than in stock", Head: []string{"load", "policy", "what", "of stock (95 % interval)"}}
	for _, k := range c.of(PartRequests) {
		for _, arm := range c.armsOf(k) {
			if arm == Stock {
				continue
			}
			figures := []figure{p50Short, p99Computing, meanSlowdown}
			for _, name := range c.functions(k) {
				f := worstP99.ofFunction(name)
				f.title = "P99 of " + name
				figures = append(figures, f)
			}
			for _, f := range figures {
				if c.more(k, arm, f, f.tolerance()) {
					harmed.add(k.String(), c.title(arm), f.title, c.ratio(k, arm, Stock, f).String())
				}
			}
		}
	}
	for _, k := range c.of(PartBystanders) {
		for _, arm := range c.armsOf(k) {
			if arm == Stock {
				continue
			}
			if c.more(k, arm, bystanderP95, bystanderP95.tolerance()) {
				harmed.add(k.String(), c.title(arm), bystanderP95.title, c.ratio(k, arm, Stock, bystanderP95).String())
			}
			// Less CPU is worse.
			if c.less(k, arm, bystanderCPU, bystanderCPU.tolerance()) {
				harmed.add(k.String(), c.title(arm), bystanderCPU.title, c.ratio(k, arm, Stock, bystanderCPU).String())
			}
		}
	}
	open := table{Caption: "Undecided", Head: []string{"load", "figure", "against", "measured (95 % interval)", "why it is not known"}}
	for _, j := range c.judge() {
		if j.verdict == stats.NotKnown {
			open.add(j.k.String(), j.title(c), c.title(j.baseline), j.ratio.String(), j.why)
		}
	}
	s := section{Title: "Harmed and undecided", Tables: []table{harmed, open}}
	if len(harmed.Rows) == 0 {
		s.Text = append(s.Text, "Nothing is certainly slower than in stock: for no function, no bystander and no figure over all functions is the whole interval worse than stock by more than 5 % (10 % for a P99), and the ratio further from 1 than that of stock again.")
	}
	if len(open.Rows) == 0 {
		s.Text = append(s.Text, "Nothing is undecided.")
	}
	return s
}

func (c *comparison) measured() section {
	in := "The cluster's CPU was not read."
	if c.Machine.Cores > 0 {
		in = fmt.Sprintf("The platform used %.2f of %d cores before there was any load; a load is a percentage of the remaining cores.", c.Platform, c.Machine.Cores)
	}
	learned := fmt.Sprintf("Libra had learned from %d other requests before.", c.Learned)
	if c.Unlearned > 0 {
		learned += fmt.Sprintf(" Another %d failed, which count nowhere else.", c.Unlearned)
	}
	s := section{Title: "What was measured", Text: []string{
		fmt.Sprintf("%s. Commit %s, seed %d. %d blocks in %.0f minutes. %s %s",
			c.Machine.About, c.Commit, c.Seed, len(c.Blocks), c.Elapsed.Minutes(), in, learned),
	}}
	if c.Machine.Cores > 0 {
		s.Text = append(s.Text, fmt.Sprintf("On average the node took %.1f ms of CPU more for a request under load than its function took for it alone: above all in the gateway, the activator, the sidecar and the sender.", c.Machine.RequestMilliseconds))
	}
	disturbed, late := 0, 0
	for _, b := range c.Blocks {
		if b.Disturbed() {
			disturbed++
		}
		if b.Late() {
			late++
		}
	}
	if disturbed > 0 {
		s.Text = append(s.Text, fmt.Sprintf("Blocks in which the hypervisor took more than %s that this machine had use for: %d. Their figures say as much about the machine's neighbours.", mostStolenText, disturbed))
	}
	if late > 0 {
		s.Text = append(s.Text, fmt.Sprintf("Blocks in which more than %s of the requests were sent more than %d ms late: %d. Their load was not that of their schedules.", percentText(mostLate), lateMS, late))
	}
	if len(c.Alerts) > 0 {
		s.Text = append(s.Text, "Alerts of Libra that fired meanwhile: "+strings.Join(c.Alerts, ", ")+".")
	}
	for _, left := range c.Unmeasured {
		s.Text = append(s.Text, "Not measured: "+left)
	}
	if n, of := c.withoutAlone(); n > 0 {
		s.Text = append(s.Text, fmt.Sprintf("Of %d requests, %d have no slow-down, because their input was not run alone.", of, n))
	}
	arms := table{Caption: "What is compared", Head: []string{"policy", "name", "what it is"}}
	for _, a := range c.Arms {
		arms.add(a.Title, a.Name, a.About)
	}
	functions := table{Caption: "Functions", Head: []string{"function", "copy", "user allocation", "requests at a time", "mostly", "demand follows the input's size"}}
	for _, f := range c.Functions {
		mostly, related, at := "computes", "no", fmt.Sprint(f.Concurrency)
		if f.Waits {
			mostly = "waits"
		}
		if f.Related {
			related = "yes"
		}
		if f.Concurrency == 0 {
			at = "any number"
		}
		functions.add(f.Name, fmt.Sprint(f.Set), f.Limit.String(), at, mostly, related)
	}
	alone := table{Caption: "Alone on an idle node without limits, over the inputs", Head: []string{"function", "inputs", "median", "longest", "median CPU", "most CPU"}}
	for _, name := range c.aloneFunctions() {
		var took, cpu []float64
		for _, a := range c.Alone {
			if a.Function == name {
				took, cpu = append(took, a.Milliseconds), append(cpu, a.CPUMilliseconds)
			}
		}
		if c.Machine.Cores == 0 {
			cpu = nil
		}
		alone.add(name, fmt.Sprint(len(took)), milliseconds(report.Percentile(took, 50)), milliseconds(report.Percentile(took, 100)),
			milliseconds(report.Percentile(cpu, 50)), milliseconds(report.Percentile(cpu, 100)))
	}
	s.Tables = []table{arms, functions, alone}
	return s
}

func (c *comparison) aloneFunctions() []string {
	var names []string
	seen := map[string]bool{}
	for _, a := range c.Alone {
		if !seen[a.Function] {
			seen[a.Function] = true
			names = append(names, a.Function)
		}
	}
	return names
}

// withoutAlone returns how many requests have no slow-down, and out of how many. It skips
// the part memory, whose requests need none.
func (c *comparison) withoutAlone() (n, of int) {
	for _, b := range c.Blocks {
		if b.Part == PartMemory {
			continue
		}
		for _, r := range b.Requests {
			of++
			if a, ok := c.alone[input{r.Function, r.Input}]; !ok || a.Milliseconds <= 0 {
				n++
			}
		}
	}
	return n, of
}

// maxFailuresListed keeps the report readable when blocks go wrong.
const maxFailuresListed = 20

func (c *comparison) failuresSection() section {
	failed := c.failures()
	total := 0
	for _, b := range c.Blocks {
		total += len(b.Requests)
		if b.Bystander != nil {
			total += len(b.Bystander.Requests)
		}
	}
	outside := c.failedOutsideMemory()
	said := fmt.Sprintf("%d of %d requests failed", len(failed), total)
	if len(c.of(PartMemory)) > 0 {
		said += fmt.Sprintf("; %d of them in the part about memory, which measures failures", len(failed)-outside)
	}
	s := section{Title: "Failed requests", Text: []string{said + "."}}
	t := table{Head: []string{"part", "load", "block", "policy", "request", "function", "what failed"}}
	for _, f := range failed {
		if f.Part == PartMemory {
			continue
		}
		if len(t.Rows) == maxFailuresListed {
			t.add("", "", "", "", "", "", fmt.Sprintf("and %d more", outside-maxFailuresListed))
			break
		}
		function := f.Function
		if f.service {
			function += " (bystander)"
		}
		t.add(f.Part, combination{f.Part, f.Load, f.Pods}.String(), fmt.Sprint(f.Number), c.title(f.Arm), fmt.Sprint(f.N), function, f.Error)
	}
	s.Tables = []table{t}
	return s
}

func (c *comparison) method() section {
	return section{Title: "How it was measured", Text: []string{
		"A block sends the requests of one schedule to the functions of one policy, each at its time, whether or not earlier requests were answered. The blocks of a load that have the same number have the same requests, at the same times, under each policy, one policy after the other in random order; the next number has a new schedule. A response time runs from when the request was due, not from when it was sent, to the last byte of the answer.",
		"The slow-down of a request is its response time over that of the same input alone on an idle node without limits. Computing requests are those to functions that do not mostly wait for others; short requests are computing requests that need at most 100 ms of CPU alone.",
		"P99, P95 and P50 are nearest ranks, over the requests of all blocks. They are of response times, or of slow-downs where that is said; the longest inputs decide the response times of computing requests. The mean slow-down is of all requests. Goodput is the share of requests that were answered within 5 times the time that they take alone. Slower than stock by 10 % is a share of pairs: the same request in the block with the same number. Stock again, which is the same as stock, has such pairs, too: they show the noise of single requests.",
		"A failed request counts as the longest response time that any request had under the same load with any policy, over its own time alone for its slow-down. It is never left out.",
		fmt.Sprintf("A ratio is over the blocks that both policies have. Its interval is from %d resamples: each draws slices of 5 s of the schedules with replacement from all blocks, the same slices for both policies, and computes the ratio from them; 95 %% of these ratios lie in an interval. As many resamples draw whole blocks, and the interval that is stated holds both: on a full node a queue lasts longer than a slice. Figures that have one value for each block (CPU, pod-seconds, OOM kills) have an interval by Student's t, of the logarithms of the blocks' ratios. With only one slice, or fewer than three such values, there is no interval. A question mark after a ratio says that its interval is wider than ±5 %% (P99: ±10 %%) of the ratio.", resamples),
		"The paper's own figures follow its definitions. A request's speed-up (its equation 1) is (t - t') / t, where t is its time in stock and t' its time under the policy: below 0 it was slowed down, and at -1 it took twice as long. The share of the available CPU that functions use (its equation 2) is of the cores that the platform leaves, not of all of the node's; a function's sidecar counts with the function. Harvested, accelerated and idle are products of volume and time, as in its figure 8: how far limits in force were below user allocations, how far they were above, and what was in the pool and lent to nobody, by the node agent's counters, from before a block until its last request was answered. Only policies that lend what owners have show them; what the node has idle belongs to nobody, and no such volume is set aside. The share that the safeguard restored counts a donor once for CPU and once for memory.",
		"The worst function is the one with the greatest ratio, of all functions that were called. That ratio is above 1 even where only noise differs, as stock again shows; elsewhere it is too high rather than too low.",
		"An interval says how much the ratio depends on which moments and which blocks were measured. A few blocks show little of what differs between blocks, as when another tenant of the machine is busy, and one block nothing; stock again shows that, and so does the CPU that the hypervisor took.",
	}}
}
