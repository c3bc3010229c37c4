package evaluation

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/demo/report"
)

// section is a part of the report, for the page and for Markdown alike.
type section struct {
	Title  string
	Text   []string
	Tables []table
	draw   func() ([]figure, error) // nil without plots
}

type table struct {
	Caption string
	Head    []string
	Rows    [][]string
}

func (t *table) add(cells ...string) { t.Rows = append(t.Rows, cells) }

// maxFailuresListed keeps a report of runs that went wrong readable.
const maxFailuresListed = 20

// document is the whole report.
func document(d Data, c Comparison) []section {
	sections := []section{
		d.measured(c), d.notHolding(c), d.responseTimes(c), d.speedups(c), d.utilisation(c),
		d.reassigned(c), d.latencyBreakdown(c), d.overhead(c), d.perFunction(c), d.perRound(c),
	}
	if c.Agreement != nil {
		sections = slices.Insert(sections, 2, d.agreement(c))
	}
	return sections
}

func (d Data) measured(c Comparison) section {
	s := section{Title: "What was measured", Text: []string{
		fmt.Sprintf("%s. Commit %s, seed %d, arrivals from %s. Rounds: %d; runs: %d; %.0f minutes in all. Libra had learned from %d requests before.",
			d.Machine, d.Commit, d.Seed, d.Trace, c.Rounds, len(d.Runs), d.Elapsed.Minutes(), d.Learned),
		"All runs of a workload replay the same requests, one policy after the other in each round, so that a drift of the machine hits all alike. Ratios are to stock in the same round, and the figure is their median; the least and the most are the spread. Percentiles are nearest ranks: of fewer than 100 values, P99 is the largest.",
		fmt.Sprintf("Failed requests: %d (an error, no answer, or another answer than stock's). Sent more than %d ms late: %d.", len(c.Failures), report.LateMS, c.Late),
	}}
	if d.Alerts != nil {
		fired := "none"
		if len(d.Alerts) > 0 {
			fired = strings.Join(d.Alerts, ", ")
		}
		s.Text = append(s.Text, "Alerts of Libra's that fired while it was measured: "+fired+".")
	}
	policies := table{Caption: "Policies", Head: []string{"policy", "name", "what it is"}}
	for _, p := range d.Policies {
		policies.add(p.Title, p.Name, p.About)
	}
	functions := table{Caption: "Functions (table 1 of the paper)", Head: []string{"function", "demand follows the input's size", "user allocation"}}
	for _, f := range d.Functions {
		related := "no"
		if f.Related {
			related = "yes"
		}
		functions.add(f.Name, related, f.Limit.String())
	}
	failures := table{Caption: "Failures", Head: []string{"policy", "workload", "round", "request", "function", "what failed"}}
	for i, f := range c.Failures {
		if i == maxFailuresListed {
			failures.add("", "", "", "", "", fmt.Sprintf("and %d more", len(c.Failures)-i))
			break
		}
		failures.add(d.title(f.Policy), f.Workload, fmt.Sprint(f.Round), fmt.Sprint(f.N), f.Function, f.Error)
	}
	s.Tables = []table{policies, functions, failures}
	return s
}

func (d Data) notHolding(c Comparison) section {
	s := section{Title: "Where it does not hold", Text: c.Findings}
	if len(c.Findings) == 0 {
		s.Text = []string{"Nowhere that could be checked."}
	}
	checked := table{Caption: "What was checked", Head: []string{"what", "measured", "wanted"}}
	if v := c.of(Libra, Related); !math.IsNaN(v.P99.Median) {
		checked.add("Libra's P99 on the size-related workload, over stock's", report.Ratio(v.P99.Median), "at most "+report.Ratio(relatedP99Ratio))
	}
	for _, w := range c.Workloads {
		checked.add("P99 of the slow-down of harvested pairs, workload "+w,
			fmt.Sprintf("%s; without Libra %s", change(c.of(Libra, w).SlowdownP99), c.Noise[w]),
			"at most "+share(slowdownBeyond)+" beyond that without Libra")
	}
	if ours, _, _ := c.order(); len(ours) > 1 {
		checked.add("order by P99 on the mixed workload", d.words(ours), d.words(c.inPapersOrder()))
	}
	s.Tables = []table{checked}
	return s
}

func (d Data) responseTimes(c Comparison) section {
	s := section{Title: "Response time: figures 6(a) and 13 of the paper", Text: []string{
		"P50 and P99 of the response times of all answered requests, over stock's in the same round. Stock again is the noise.",
		"The paper says of figure 13 that the 99th percentile of invocations is accelerated by so much. For the mixed workload that is the reduction of P99 of figure 6(a), so we take it as that for the others, too.",
	}, draw: func() ([]figure, error) { return d.responsePlots(c) }}
	t := table{Caption: "P50 and P99 over stock's", Head: []string{"workload", "policy", "P50", "P99", "least", "most", "paper's P99", "the paper says", "where"}}
	for _, v := range c.Versus {
		p, where, said := paperCells(paperP99, v, report.Ratio)
		t.add(v.Workload, d.title(v.Policy), report.Ratio(v.P50.Median), report.Ratio(v.P99.Median),
			report.Ratio(v.P99.Least), report.Ratio(v.P99.Most), p, said, where)
	}
	s.Tables = []table{t}
	return s
}

func (d Data) speedups(c Comparison) section {
	s := section{Title: "Speed-up and slow-down: figures 6(b) and 13 of the paper", Text: []string{
		"A pair is a function with one of its inputs. Its time is the median over all runs, and over its repeats in a run. Speed-up is 1 - time / time in stock: equation 1 of section 8.1. Slow-down is time / time in stock - 1, of the harvested pairs: those that lent anything in any run of the policy. For stock again, and for policies that nothing is recorded of, they are the pairs that Libra harvested in that workload.",
		"The paper's worst slow-down is of single invocations, averaged over five experiments.",
	}, draw: func() ([]figure, error) { return d.speedupPlots(c) }}
	t := table{Caption: "Slow-down of the harvested, and speed-up of all", Head: []string{"workload", "policy", "pairs", "harvested", "slow-down P99", "worst", "paper's worst", "where", "speed-up P50", "P99"}}
	for _, v := range c.Versus {
		p, where, _ := paperCells(paperWorst, v, change)
		harvested := 0
		for _, pair := range v.Pairs {
			if pair.Harvested {
				harvested++
			}
		}
		all := speedups(v.Pairs)
		t.add(v.Workload, d.title(v.Policy), fmt.Sprint(len(v.Pairs)), fmt.Sprint(harvested), change(v.SlowdownP99), change(v.SlowdownWorst), p, where,
			change(report.Percentile(all, 50)), change(report.Percentile(all, 99)))
	}
	s.Tables = []table{t}
	return s
}

func (d Data) utilisation(c Comparison) section {
	s := section{Title: "Utilisation and completion: figure 7 of the paper", Text: []string{
		"In flight: CPU-seconds used in the run, over the user allocations' while the function had a request in flight; byte-seconds of memory used while it had one, over the allocations'. What is reassigned counts as used of what the owners configured. An open-loop load can move this.",
		"Over time: what all functions' containers used of the sum of their limits in force, each second from the first request sent to the last answer, and its mean: equation 2 of section 8.1. Where no limit is in force, the user allocation stands for it. Both are the medians over rounds, over stock's.",
		"The plot of the limits has what Libra changed while its first round lasted.",
		"Completion is the time from the first request sent to the last answer. The requests are sent when they are due, not when others were answered, so that it cannot fall below the length of the schedule.",
	}, draw: func() ([]figure, error) { return d.utilisationPlots(c) }}
	t := table{Caption: "Over stock's", Head: []string{"workload", "policy", "CPU in flight", "CPU over time", "paper's CPU", "memory in flight", "memory over time", "paper's memory", "completion", "paper's completion"}}
	for _, v := range c.Versus {
		cpu, _, _ := paperCells(paperCPU, v, report.Ratio)
		memory, _, _ := paperCells(paperMemory, v, report.Ratio)
		completion, _, _ := paperCells(paperCompletion, v, report.Ratio)
		t.add(v.Workload, d.title(v.Policy), report.Ratio(v.InFlight.CPU), report.Ratio(v.OverTime.CPU), cpu,
			report.Ratio(v.InFlight.Memory), report.Ratio(v.OverTime.Memory), memory, report.Ratio(v.Completion.Median), completion)
	}
	s.Tables = []table{t}
	return s
}

func (d Data) reassigned(c Comparison) section {
	s := section{Title: "Harvesting and acceleration: figure 8 of the paper", Text: []string{
		"For each invocation on record, what was reassigned at most while it ran, multiplied by its time in the pod: above zero to it, below zero from it. Speed-up is against the median of the same function and input in stock.",
	}, draw: func() ([]figure, error) { return d.reassignedPlots(c) }}
	t := table{Caption: "Invocations by kind", Head: []string{"workload", "policy", "kind", "by CPU", "median speed-up", "by memory", "median speed-up"}}
	for _, w := range c.Workloads {
		for _, p := range d.policies(w) {
			points := c.movedOf(p, w)
			if len(points) == 0 {
				continue
			}
			for _, k := range Kinds {
				var cpu, memory []float64
				for _, m := range points {
					if m.CPUKind == k {
						cpu = append(cpu, m.Speedup)
					}
					if m.MemoryKind == k {
						memory = append(memory, m.Speedup)
					}
				}
				t.add(w, d.title(p), k, fmt.Sprint(len(cpu)), change(median(cpu)), fmt.Sprint(len(memory)), change(median(memory)))
			}
		}
	}
	s.Tables = []table{t}
	return s
}

func (c Comparison) movedOf(policy, workload string) []Moved {
	var points []Moved
	for _, m := range c.Moved {
		if m.Policy == policy && m.Workload == workload {
			points = append(points, m)
		}
	}
	return points
}

// paperCells are the paper's figure, where it is, and what it says there.
func paperCells(figures []published, v Versus, format func(float64) string) (value, where, said string) {
	p, ok := inPaper(figures, v.Policy, v.Workload)
	if !ok {
		return "-", "", ""
	}
	return format(p.value), p.where, p.said
}
