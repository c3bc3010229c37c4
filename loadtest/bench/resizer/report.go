package main

import (
	"fmt"
	"io"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

// figure is one that there is a goal for.
type figure struct {
	name, what string
	estimate   stats.Interval
	goal       stats.Goal
	of         string // how much it was measured
}

func metricsOf(figures []figure) map[string]float64 {
	metrics := map[string]float64{}
	for _, f := range figures {
		metrics[f.name] = f.estimate.Estimate
		if f.estimate.Low != f.estimate.High {
			metrics[f.name+"_low"], metrics[f.name+"_high"] = f.estimate.Low, f.estimate.High
		}
	}
	return metrics
}

// writeTable says of each goal whether it holds. Of a figure without an interval, which is a maximum
// of all that was seen, the figure itself decides.
func writeTable(out io.Writer, figures []figure) {
	fmt.Fprintf(out, "%-66s %8s %17s %9s %13s  %s\n", "", "measured", "95 % interval", "over", "to be", "the goal")
	for _, f := range figures {
		interval := "-"
		if f.estimate.Low != f.estimate.High {
			interval = amount(f.estimate.Low) + " to " + amount(f.estimate.High)
		}
		fmt.Fprintf(out, "%-66s %8s %17s %9s %13s  %s\n", f.what, amount(f.estimate.Estimate), interval, f.of, f.goal, stats.Said(f.goal.Absolute(f.estimate)))
	}
}

// amount has as many digits as it takes to compare it with its goal.
func amount(v float64) string {
	switch {
	case v < 1:
		return report.Number("%.4f", v)
	case v < 20:
		return report.Number("%.2f", v)
	default:
		return report.Number("%.0f", v)
	}
}
