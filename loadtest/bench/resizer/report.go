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
	most       float64
	of         string // how much it was measured
}

// verdict says whether a goal is reached. An interval on both sides of it leaves that open.
func (f figure) verdict() string {
	switch {
	case f.estimate.Low > f.most:
		return "missed"
	case f.estimate.High <= f.most:
		return "holds"
	case f.estimate.Estimate > f.most:
		return "not known, rather missed"
	default:
		return "not known, rather holds"
	}
}

// exactly is a value that is not an estimate.
func exactly(v float64) stats.Interval { return stats.Interval{Estimate: v, Low: v, High: v} }

// meanOf is that of the blocks' values.
func meanOf(blocks []float64, seed uint64) stats.Interval {
	return stats.Bootstrap(len(blocks), seed, func(counts []int) float64 {
		sum := 0.0
		for i, n := range counts {
			sum += blocks[i] * float64(n)
		}
		return sum / float64(len(blocks))
	})
}

func medianOf(values []float64, seed uint64) stats.Interval {
	var blocks [][]float64
	for _, v := range values {
		blocks = append(blocks, []float64{v})
	}
	pooled := stats.Pool(blocks)
	return stats.Bootstrap(len(blocks), seed, func(counts []int) float64 { return pooled.Percentile(counts, 50) })
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

// writeTable says of each goal whether it holds.
func writeTable(out io.Writer, figures []figure) {
	fmt.Fprintf(out, "%-66s %8s %17s %9s %7s  %s\n", "", "measured", "95 % interval", "over", "at most", "the goal")
	for _, f := range figures {
		interval := "-"
		if f.estimate.Low != f.estimate.High {
			interval = amount(f.estimate.Low) + " to " + amount(f.estimate.High)
		}
		fmt.Fprintf(out, "%-66s %8s %17s %9s %7s  %s\n", f.what, amount(f.estimate.Estimate), interval, f.of, fmt.Sprint(f.most), f.verdict())
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
