package main

import (
	"fmt"
	"io"

	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/loadtest/demo/report"
)

// figure is a figure with a goal.
type figure struct {
	name, what string
	estimate   stats.Interval
	goal       stats.Goal
	of         string // how much was measured
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

// writeTable says for each goal whether it holds. A figure without an interval is the maximum of
// everything seen, and decides by itself.
func writeTable(out io.Writer, figures []figure) {
	fmt.Fprintf(out, "%-66s %8s %17s %9s %13s  %s\n", "", "measured", "95 % interval", "over", "goal", "verdict")
	for _, f := range figures {
		interval := "-"
		if f.estimate.Low != f.estimate.High {
			interval = amount(f.estimate.Low) + " to " + amount(f.estimate.High)
		}
		fmt.Fprintf(out, "%-66s %8s %17s %9s %13s  %s\n", f.what, amount(f.estimate.Estimate), interval, f.of, f.goal, stats.Said(f.goal.Absolute(f.estimate)))
	}
}

// amount formats a figure with as many digits as a comparison with its goal needs.
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
