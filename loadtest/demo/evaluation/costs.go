package evaluation

import (
	"fmt"

	"libra.dev/libra/loadtest/demo/report"
)

func (d Data) latencyBreakdown(c Comparison) section {
	s := section{Title: "Latency breakdown: figure 15 of the paper", Text: []string{
		"The steps of Libra's, of all its runs: the percentiles are medians over the runs.",
		"Gateway, activator and queue is the response time less the time in the pod, of Libra's requests on record. Sent behind another is a request that was sent when an earlier one of its function was in flight.",
		"The paper has a figure without numbers here, and says that predictions take less than 2 ms (section 8.6).",
	}}
	stages := table{Caption: "Steps of Libra's", Head: []string{"step", "times", "P50, ms", "P99, ms"}}
	for _, st := range c.Stages {
		stages.add(st.Name, fmt.Sprint(st.Count), report.Number("%.2f", 1000*st.P50), report.Number("%.2f", 1000*st.P99))
	}
	outside := table{Caption: "Gateway, activator and queue, with Libra", Head: []string{"workload", "function", "requests", "on record", "P50, ms", "P99, ms", "share of the response", "throttled in the pod", "sent behind another", "cores of other functions"}}
	for _, o := range c.Outside {
		outside.add(o.Workload, orAll(o.Function), fmt.Sprint(o.Requests), fmt.Sprint(o.Observed), report.MS(o.P50), report.MS(o.P99), share(o.Facts.Outside), share(o.Throttled), share(o.Queued), report.Number("%.2f", o.Others))
	}
	s.Tables = []table{stages, outside}
	return s
}

func (d Data) overhead(c Comparison) section {
	s := section{Title: "Overhead: section 8.10 of the paper", Text: []string{
		"The mean cores and the most memory of each part while functions were called: medians over Libra's runs of the mixed workload, or of all where it was not run. Of the activator, the difference to the stock one in the same round. The paper's cluster had four nodes of 32 cores, and its memory is in MB, ours in MiB.",
	}}
	ours := table{Caption: "Ours", Head: []string{"part", "cores", "memory, MiB"}}
	all := Overhead{Part: "all of them"}
	for _, o := range c.Overheads {
		ours.add(o.Part, report.Number("%.3f", o.Cores), report.Number("%.1f", o.MiB))
		all.Cores += o.Cores
		all.MiB += o.MiB
	}
	if len(c.Overheads) > 0 {
		ours.add(all.Part, report.Number("%.3f", all.Cores), report.Number("%.1f", all.MiB))
	}
	paper := table{Caption: "The paper's", Head: []string{"part", "cores", "memory, MB"}}
	for _, o := range paperOverheads {
		paper.add(o.part, fmt.Sprintf("%.1f", o.cores), fmt.Sprintf("%.0f", o.mb))
	}
	s.Tables = []table{ours, paper}
	return s
}

func (d Data) perFunction(c Comparison) section {
	t := table{Head: []string{"workload", "function", "policy", "P50, ms", "P99, ms", "worst, ms", "P50 / stock", "P99 / stock", "worst / stock"}}
	for _, r := range c.Latencies {
		t.add(r.Workload, orAll(r.Function), d.title(r.Policy), report.MS(r.Latency.P50), report.MS(r.Latency.P99), report.MS(r.Latency.Worst),
			report.Ratio(r.Ratio.P50), report.Ratio(r.Ratio.P99), report.Ratio(r.Ratio.Worst))
	}
	return section{Title: "Response times by policy and function", Text: []string{
		"Medians over the rounds, of the time itself and of its ratio to stock in the same round.",
	}, Tables: []table{t}}
}

func (d Data) perRound(c Comparison) section {
	t := table{Head: []string{"workload", "policy", "round", "P50, ms", "P99, ms", "P50 / stock", "P99 / stock", "completion / stock", "CPU in flight", "memory in flight"}}
	for _, v := range c.Versus {
		for _, r := range v.Rounds {
			t.add(v.Workload, d.title(v.Policy), fmt.Sprint(r.Round), report.MS(r.Latency.P50), report.MS(r.Latency.P99), report.Ratio(r.P50), report.Ratio(r.P99),
				report.Ratio(r.Completion), share(r.InFlight.CPU), share(r.InFlight.Memory))
		}
	}
	return section{Title: "Round by round", Text: []string{
		"The requests of round 1 were new to the models; in later rounds Libra had met the same inputs. Utilisation is itself, not over stock's.",
	}, Tables: []table{t}}
}

func orAll(function string) string {
	if function == "" {
		return "all"
	}
	return function
}
