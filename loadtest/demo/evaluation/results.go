package evaluation

import (
	"fmt"

	"libra.dev/libra/loadtest/demo/report"
)

// results returns the evaluation's results for machines. Whatever was not measured is
// absent.
func (c *comparison) results() report.Results {
	m := map[string]float64{
		"undecided":       float64(undecided(c.judge())),
		"failed_requests": float64(c.failedOutsideMemory()),
	}
	put := func(name string, i interval) {
		if i.measured() {
			// Results.Write leaves NaN out.
			m[name], m[name+"_low"], m[name+"_high"] = i.value, i.low, i.high
		}
	}
	for _, j := range c.judge() {
		if j.without != "" {
			put(fmt.Sprintf("%s_gap_closed_%s_%d_%d", j.figure.name, j.arm, j.k.load, j.k.pods), j.ratio)
		}
	}
	for _, k := range c.of(PartRequests) {
		for _, arm := range c.armsOf(k) {
			of := fmt.Sprintf("_%s_%d_%d", arm, k.load, k.pods)
			if arm != NoLimits {
				for _, f := range []figure{p99Computing, p95Computing, p50Short, meanSlowdown, worstP99} {
					put(f.name+of, c.ratio(k, arm, NoLimits, f))
				}
			}
			if arm != Stock {
				put("p99_stock"+of, c.ratio(k, arm, Stock, p99Computing))
			}
			m["libra_cores"+of] = c.coresOf(k, arm, libraCPU)
			if agents := c.coresOf(k, arm, agentsCPU); agents > 0 { // older data has none
				m["agent_cores"+of] = agents
			}
			if w := c.weighed(k, arm); w.Requests > 0 {
				m["weighed"+of] = w.Requests
				m["weighed_within_5ms"+of], m["weighed_within_10ms"+of] = w.Within5MS/w.Requests, w.Within10MS/w.Requests
			}
		}
	}
	for part, prefix := range map[string]string{PartRequests: "", PartAblations: "ablation_"} {
		for _, k := range c.of(part) {
			for _, arm := range c.armsOf(k) {
				name := func(of string) string {
					return fmt.Sprintf("%spaper_%s_%s_%d_%d", prefix, of, arm, k.load, k.pods)
				}
				m[name("utilisation")], m[name("safeguarded")] = c.utilisation(k, arm), c.safeguardedShare(k, arm)
				if arm != Stock {
					var mean interval
					mean, m[name("worst_speedup")] = c.speedup(k, arm)
					put(name("speedup"), mean)
					put(name("p99_reduction"), c.reduction(k, arm))
				}
				for _, f := range []figure{harvestedCPU, harvestedMemory, acceleratedCPU, acceleratedMemory} {
					put(name(f.name), c.value(k, arm, f))
				}
			}
		}
	}
	for _, k := range c.of(PartAblations) {
		for _, arm := range c.armsOf(k) {
			if base := c.base(arm); base != "" {
				of := fmt.Sprintf("_%s_%d_%d", arm, k.load, k.pods)
				put("ablation_p99_computing"+of, c.ratio(k, arm, base, p99Computing))
				put("ablation_mean_slowdown"+of, c.ratio(k, arm, base, meanSlowdown))
			}
		}
	}
	for _, k := range c.of(PartBystanders) {
		for _, arm := range c.armsOf(k) {
			if arm != Stock {
				put(fmt.Sprintf("bystander_p95_%s_%d", arm, k.load), c.ratio(k, arm, Stock, bystanderP95))
				put(fmt.Sprintf("bystander_cpu_%s_%d", arm, k.load), c.ratio(k, arm, Stock, bystanderCPU))
			}
		}
	}
	for _, k := range c.of(PartMemory) {
		for _, arm := range c.armsOf(k) {
			put("oom_kills_"+arm, c.value(k, arm, oomKills).times(float64(len(c.numbers(k, arm)))))
			put("oom_failed_"+arm, c.value(k, arm, failedShare).times(float64(c.requests(k, arm))))
		}
	}
	for _, k := range c.of(PartCost) {
		for _, arm := range c.armsOf(k) {
			put("pod_seconds_"+arm, c.value(k, arm, podSeconds))
		}
	}
	return report.Results{Machine: c.Machine.About, Commit: c.Commit, Seed: c.Seed, Metrics: m}
}

func (i interval) times(by float64) interval {
	i.value, i.low, i.high = i.value*by, i.low*by, i.high*by
	return i
}

// requests returns how many requests an arm had in a combination.
func (c *comparison) requests(k combination, arm string) int {
	n := 0
	for _, b := range c.blocks[k][arm] {
		n += len(b.Requests)
	}
	return n
}
