package evaluation

import (
	"maps"

	"libra.dev/libra/loadtest/demo/report"
)

// ResultsOf are the evaluation's results for machines: docs of each figure are at
// Comparison, and in the report's own text.
func ResultsOf(d Data, c Comparison) report.Results {
	m := map[string]float64{
		"failed_requests":  float64(len(c.Failures)),
		"late_requests":    float64(c.Late),
		"runs":             float64(c.Rounds),
		"seconds_total":    d.Elapsed.Seconds(),
		"learned_requests": float64(d.Learned),
	}
	for _, v := range c.Versus {
		of := "_" + v.Policy + "_" + v.Workload
		all := speedups(v.Pairs)
		maps.Copy(m, map[string]float64{
			"p99_ratio" + of:                v.P99.Median,
			"p99_ratio" + of + "_min":       v.P99.Least,
			"p99_ratio" + of + "_max":       v.P99.Most,
			"p50_ratio" + of:                v.P50.Median,
			"p50_ratio" + of + "_min":       v.P50.Least,
			"p50_ratio" + of + "_max":       v.P50.Most,
			"slowdown_p99" + of:             v.SlowdownP99,
			"worst_slowdown" + of:           v.SlowdownWorst,
			"speedup_p50" + of:              report.Percentile(all, 50),
			"speedup_p99" + of:              report.Percentile(all, 99),
			"cpu_util_ratio" + of:           v.InFlight.CPU,
			"mem_util_ratio" + of:           v.InFlight.Memory,
			"cpu_util_over_time_ratio" + of: v.OverTime.CPU,
			"mem_util_over_time_ratio" + of: v.OverTime.Memory,
			"completion_ratio" + of:         v.Completion.Median,
		})
	}
	for w, noise := range c.Noise {
		m["noise_slowdown_p99_"+w] = noise.SlowdownP99
	}
	if d.Alerts != nil {
		m["alerts_fired"] = float64(len(d.Alerts))
	}
	for _, o := range c.Overheads {
		m["overhead_cpu_"+o.Part] = o.Cores
		m["overhead_mem_mib_"+o.Part] = o.MiB
	}
	if c.Agreement != nil {
		m["order_swaps"] = float64(len(c.Agreement.Swapped))
	}
	return report.Results{Machine: d.Machine, Commit: d.Commit, Seed: d.Seed, Metrics: m}
}
