package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/bench/stats"
)

func TestTable(t *testing.T) {
	figures := []figure{
		{name: "a", what: "first", estimate: stats.Exactly(250), goal: stats.Goal{Bound: 300}, of: "60 s"},
		{name: "b", what: "second", estimate: stats.Interval{Estimate: 0.3, Low: 0.25, High: 0.35}, goal: stats.Goal{Bound: 0.2}, of: "60 s"},
		{name: "c", what: "third", estimate: stats.Interval{Estimate: 4, Low: 3, High: 6}, goal: stats.Goal{Bound: 5}, of: "60 s"},
	}
	var out bytes.Buffer
	writeTable(&out, figures)
	lines := slices.Collect(strings.Lines(out.String()))
	if len(lines) != 4 || !strings.Contains(lines[1], "250") || !strings.Contains(lines[1], "holds") ||
		!strings.Contains(lines[2], "0.2500 to 0.3500") || !strings.Contains(lines[2], "does not hold") ||
		!strings.Contains(lines[3], "not known: the goal is within the interval") {
		t.Errorf("the table is\n%s", out.String())
	}
	metrics := metricsOf(figures)
	if len(metrics) != 7 || metrics["a"] != 250 || metrics["b_high"] != 0.35 {
		t.Errorf("metrics %v", metrics)
	}
}
