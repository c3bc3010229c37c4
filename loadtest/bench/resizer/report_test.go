package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/bench/stats"
)

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		low, estimate, high float64
		want                string
	}{
		{1, 2, 3, "holds"},
		{2, 3, 10, "holds"},
		{11, 12, 13, "missed"},
		{9, 9.5, 11, "not known, rather holds"},
		{9, 10.5, 11, "not known, rather missed"},
	} {
		f := figure{most: 10, estimate: stats.Interval{Low: c.low, Estimate: c.estimate, High: c.high}}
		if got := f.verdict(); got != c.want {
			t.Errorf("%v of at most 10 is %q, want %q", f.estimate, got, c.want)
		}
	}
}

func TestEstimates(t *testing.T) {
	blocks := []float64{1, 2, 3, 4, 100}
	m := meanOf(blocks, 1)
	if m.Estimate != 22 || m.Low >= 22 || m.High <= 22 {
		t.Errorf("mean %+v, want 22 in an interval", m)
	}
	if m := medianOf(blocks, 1); m.Estimate != 3 || m.Low < 1 || m.High > 100 {
		t.Errorf("median %+v, want 3", m)
	}
	if m := meanOf([]float64{2, 2, 2}, 1); m != exactly(2) {
		t.Errorf("mean of what does not differ %+v", m)
	}
}

func TestTable(t *testing.T) {
	figures := []figure{
		{name: "a", what: "first", estimate: exactly(250), most: 300, of: "60 s"},
		{name: "b", what: "second", estimate: stats.Interval{Estimate: 0.3, Low: 0.25, High: 0.35}, most: 0.2, of: "60 s"},
	}
	var out bytes.Buffer
	writeTable(&out, figures)
	lines := slices.Collect(strings.Lines(out.String()))
	if len(lines) != 3 || !strings.Contains(lines[1], "250") || !strings.Contains(lines[1], "holds") ||
		!strings.Contains(lines[2], "0.2500 to 0.3500") || !strings.Contains(lines[2], "missed") {
		t.Errorf("the table is\n%s", out.String())
	}
	metrics := metricsOf(figures)
	if len(metrics) != 4 || metrics["a"] != 250 || metrics["b_high"] != 0.35 {
		t.Errorf("metrics %v", metrics)
	}
}
