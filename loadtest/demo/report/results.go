package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// ResultsFile is the name of the results for machines in a command's folder.
const ResultsFile = "results.json"

// Results is what every command that measures something leaves for machines.
type Results struct {
	Machine string `json:"machine"`
	Commit  string `json:"commit"`
	Seed    uint64 `json:"seed"`
	// Metrics is flat. Durations are in milliseconds unless the name says
	// otherwise; shares, ratios and slow-downs are fractions.
	Metrics map[string]float64 `json:"metrics"`
}

// Write writes the results into dir. A metric that could not be measured is
// left out: JSON has no NaN.
func (r Results) Write(dir string) error {
	metrics := make(map[string]float64, len(r.Metrics))
	for name, v := range r.Metrics {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			metrics[name] = v
		}
	}
	r.Metrics = metrics
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, ResultsFile), append(data, '\n'), 0o644)
}

// ResultsOf are the demo's results for machines.
func ResultsOf(d Data, c Comparison) Results {
	m := map[string]float64{
		"failed_requests":          float64(len(c.Failures)),
		"late_requests":            float64(c.Late),
		"worst_slowdown_harvested": c.Slowdown.Fraction,
		"worst_slowdown_again":     c.SlowdownAgain.Fraction,
		"harvested_share":          share(c.Overall.Harvested, c.Overall.Requests),
		"accelerated_share":        share(c.Overall.Accelerated, c.Overall.Requests),
		"observed_share":           share(c.Overall.Observed, c.Overall.Requests),
		"resizes":                  float64(c.Overall.Resizes + d.Writes),
		"resizes_recorded":         float64(c.Overall.Resizes),
		"resizes_cgroup":           float64(d.Writes),
		"resizes_plain":            float64(c.Plain.Resizes),
		"resizes_stock":            float64(c.StockResizes),
		"container_restarts":       float64(d.Restarts),
		"seconds_total":            d.Elapsed.Seconds(),
	}
	for _, r := range append(append([]Row(nil), c.Functions...), c.Overall, c.Plain) {
		name := r.Name
		if r.Name == c.Overall.Name {
			name = "overall"
		}
		m["requests_"+name] = float64(r.Requests)
		libra, again := r.Libra.Over(r.Stock), r.Again.Over(r.Stock)
		for run, l := range map[string]Latency{"stock": r.Stock, "again": r.Again, "libra": r.Libra} {
			m["p50_ms_"+run+"_"+name], m["p99_ms_"+run+"_"+name], m["worst_ms_"+run+"_"+name] = l.P50, l.P99, l.Worst
		}
		m["p50_ratio_"+name], m["p99_ratio_"+name], m["worst_ratio_"+name] = libra.P50, libra.P99, libra.Worst
		m["p50_ratio_again_"+name], m["p99_ratio_again_"+name] = again.P50, again.P99
	}
	return Results{Machine: d.Machine, Commit: d.Commit, Seed: d.Seed, Metrics: m}
}
