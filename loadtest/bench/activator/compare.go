package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"libra.dev/libra/loadtest/bench/stats"
)

// The arms, in the order of their measurements.
const (
	stock = iota
	stockAgain
	libra
)

var armNames = []string{stock: "stock", stockAgain: "stock_again", libra: "libra"}

// measured has the measurements of one arm and one revision in one block.
type measured struct {
	paced, closed outcome
	// cpu is the activator's CPU time for the requests of the closed load.
	cpu time.Duration
}

// series has the measurements of one revision, by arm and block.
type series [][]measured

var goals = map[string]map[string]stats.Goal{
	optedOut: {"p99": {Bound: 1.02}, "rps": {Bound: 0.98, AtLeast: true}},
	optedIn:  {"p99": {Bound: 1.10}, "rps": {Bound: 0.90, AtLeast: true}},
}

func tolerance(figure string) float64 {
	if figure == "p99" {
		return stats.ToleranceP99
	}
	return stats.Tolerance
}

// figure is a number of one arm, with each block counted as counts says.
type figure struct {
	name string
	of   func(arm int, counts []int) float64
}

// figures are what is compared: percentiles of all requests of the paced load, and
// the requests of the closed load by the time and by the CPU they took.
func (s series) figures() []figure {
	latencies := make([]stats.Pooled, len(s))
	for arm, blocks := range s {
		var values [][]float64
		for _, m := range blocks {
			values = append(values, m.paced.latencies)
		}
		latencies[arm] = stats.Pool(values)
	}
	percentile := func(percent float64) func(int, []int) float64 {
		return func(arm int, counts []int) float64 { return latencies[arm].Percentile(counts, percent) }
	}
	closedSums := func(arm int, counts []int) (requests, seconds, cpuMicros float64) {
		for block, m := range s[arm] {
			n := float64(counts[block])
			requests += n * float64(len(m.closed.latencies))
			seconds += n * m.closed.length.Seconds()
			cpuMicros += n * float64(m.cpu.Microseconds())
		}
		return requests, seconds, cpuMicros
	}
	return []figure{
		{"p50", percentile(50)},
		{"p99", percentile(99)},
		{"rps", func(arm int, counts []int) float64 {
			requests, seconds, _ := closedSums(arm, counts)
			return requests / seconds
		}},
		{"cpu_us", func(arm int, counts []int) float64 {
			requests, _, cpuMicros := closedSums(arm, counts)
			return cpuMicros / requests
		}},
	}
}

// compared is one figure: for each arm, and as the ratios of Libra's arm and of the
// second stock arm to the first.
type compared struct {
	name         string
	arms         [3]float64
	ratio, again stats.Interval
}

func (s series) compare(seed uint64) []compared {
	blocks := len(s[stock])
	once := make([]int, blocks)
	for i := range once {
		once[i] = 1
	}
	var all []compared
	for _, f := range s.figures() {
		c := compared{name: f.name}
		for arm := range s {
			c.arms[arm] = f.of(arm, once)
		}
		over := func(arm int) stats.Interval {
			return stats.Bootstrap(blocks, seed, func(counts []int) float64 { return f.of(arm, counts) / f.of(stock, counts) })
		}
		c.ratio, c.again = over(libra), over(stockAgain)
		all = append(all, c)
	}
	return all
}

// unit is the end of a figure's name in the results.
var unit = map[string]string{"p50": "_ms", "p99": "_ms", "rps": "", "cpu_us": "_per_request"}

// note adds a comparison to the metrics.
func note(metrics map[string]float64, revision string, comparison []compared) {
	for _, c := range comparison {
		for arm, name := range armNames {
			metrics[c.name+unit[c.name]+"_"+name+"_"+revision] = c.arms[arm]
		}
		for name, in := range map[string]stats.Interval{"_ratio_": c.ratio, "_ratio_stock_again_": c.again} {
			metrics[c.name+name+revision] = in.Estimate
			metrics[c.name+name+revision+"_low"] = in.Low
			metrics[c.name+name+revision+"_high"] = in.High
		}
	}
}

func writeTable(w io.Writer, comparisons map[string][]compared) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "revision\tfigure\tstock\tagain\tLibra\tLibra/stock\t95 %\tagain/stock\t95 %\tgoal\t\t")
	for _, revision := range revisions {
		for _, c := range comparisons[revision] {
			to, said := "", ""
			if g, ok := goals[revision][c.name]; ok {
				verdict, why := g.Ratio(c.ratio, c.again, tolerance(c.name))
				to, said = g.String(), stats.Said(verdict, why)
			}
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f\t%.2f\t%.3f\t%.3f-%.3f\t%.3f\t%.3f-%.3f\t%s\t%s\t\n",
				revision, c.name, c.arms[stock], c.arms[stockAgain], c.arms[libra],
				c.ratio.Estimate, c.ratio.Low, c.ratio.High, c.again.Estimate, c.again.Low, c.again.High, to, said)
		}
	}
	return t.Flush()
}
