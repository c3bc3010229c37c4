package evaluation

import "libra.dev/libra/loadtest/bench/stats"

// figure is a number that describes an arm.
type figure struct {
	name  string // unique
	title string
	// percentile is the nearest-rank percentile of the values; 0 means their mean.
	percentile float64
	// of returns the value of a request; NaN leaves it out. total returns that of a block,
	// for figures that are not about requests: the figure is their mean.
	of    func(answer) float64
	total func(Block) float64
	// service says that the figure is about the bystanders' requests.
	service bool
	// worst says that the figure is computed for each function, and that the greatest ratio
	// counts.
	worst bool
}

// tolerance returns how wide a ratio's interval may be to each side, as a share of the
// ratio, and by how much stock again may differ from stock.
func (f figure) tolerance() float64 {
	if f.percentile >= 99 {
		return stats.ToleranceP99
	}
	return stats.Tolerance
}

func tookAll(a answer) float64 { return a.took }

func tookComputing(a answer) float64 {
	if !a.computing {
		return none
	}
	return a.took
}

func slowdownAll(a answer) float64 { return a.slowdown }

func slowdownComputing(a answer) float64 {
	if !a.computing {
		return none
	}
	return a.slowdown
}

func tookShort(a answer) float64 {
	if !a.short {
		return none
	}
	return a.took
}

func slowdownShort(a answer) float64 {
	if !a.short {
		return none
	}
	return a.slowdown
}

// The figures that goals and metrics are about. Percentiles over all computing requests are
// of response times, which users wait for. Percentiles over short ones, and means, are of
// slow-downs, in which a short request counts as much as a long one.
var (
	p50Computing = figure{name: "p50_computing", title: "P50 of computing requests", percentile: 50, of: tookComputing}
	p95Computing = figure{name: "p95_computing", title: "P95 of computing requests", percentile: 95, of: tookComputing}
	p99Computing = figure{name: "p99_computing", title: "P99 of computing requests", percentile: 99, of: tookComputing}
	p50Short     = figure{name: "p50_short", title: "P50 of the slow-down of short requests", percentile: 50, of: slowdownShort}
	meanSlowdown = figure{name: "mean_slowdown", title: "mean slow-down", of: slowdownAll}
	worstP99     = figure{name: "worst_function_p99", title: "worst function's P99", percentile: 99, of: tookAll, worst: true}

	p50SlowdownComputing = figure{name: "p50_slowdown_computing", title: "P50 of the slow-down of computing requests", percentile: 50, of: slowdownComputing}
	p95SlowdownComputing = figure{name: "p95_slowdown_computing", title: "P95 of the slow-down of computing requests", percentile: 95, of: slowdownComputing}
	p99SlowdownComputing = figure{name: "p99_slowdown_computing", title: "P99 of the slow-down of computing requests", percentile: 99, of: slowdownComputing}
	p95SlowdownShort     = figure{name: "p95_slowdown_short", title: "P95 of the slow-down of short requests", percentile: 95, of: slowdownShort}
	p99SlowdownShort     = figure{name: "p99_slowdown_short", title: "P99 of the slow-down of short requests", percentile: 99, of: slowdownShort}
	p50TookShort         = figure{name: "p50_took_short", title: "P50 of short requests", percentile: 50, of: tookShort}
	p95TookShort         = figure{name: "p95_took_short", title: "P95 of short requests", percentile: 95, of: tookShort}
	p99TookShort         = figure{name: "p99_took_short", title: "P99 of short requests", percentile: 99, of: tookShort}

	p50All = figure{name: "p50_all", title: "P50 of all requests", percentile: 50, of: tookAll}
	p95All = figure{name: "p95_all", title: "P95 of all requests", percentile: 95, of: tookAll}

	goodput = figure{name: "goodput", title: "goodput", of: func(a answer) float64 {
		switch {
		case a.slowdown != a.slowdown: // not run alone
			return none
		case a.failed || a.slowdown > soon:
			return 0
		}
		return 1
	}}
	failedShare = figure{name: "failed", title: "failed requests", of: func(a answer) float64 {
		if a.failed {
			return 1
		}
		return 0
	}}

	bystanderP50 = figure{name: "bystander_p50", title: "P50 of the bystanders' service", percentile: 50, of: tookAll, service: true}
	bystanderP95 = figure{name: "bystander_p95", title: "P95 of the bystanders' service", percentile: 95, of: tookAll, service: true}
	bystanderCPU = figure{name: "bystander_cpu", title: "CPU of the spinning bystander", total: func(b Block) float64 {
		if b.Bystander == nil {
			return none
		}
		return b.Bystander.SpinCPU
	}}
	podSeconds = figure{name: "pod_seconds", title: "pod-seconds", total: func(b Block) float64 { return b.PodSeconds }}
	coldStarts = figure{name: "cold_starts", title: "cold starts", total: func(b Block) float64 { return float64(b.ColdStarts) }}
	oomKills   = figure{name: "oom_kills", title: "OOM kills", total: func(b Block) float64 { return float64(b.OOMKills) }}
)

// ofFunction returns the figure over the requests of one function.
func (f figure) ofFunction(function string) figure {
	of := f.of
	f.name, f.worst = f.name+"/"+function, false
	f.of = func(a answer) float64 {
		if a.Function != function {
			return none
		}
		return of(a)
	}
	return f
}
