package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// stage is one step of Libra's, as a histogram of a part's has it.
type stage struct {
	name, metric string
	label, value string // of the histogram, where one metric has several steps
}

// source is where a part's metrics are.
type source struct {
	namespace, selector string
	port                int
	stages              []stage
}

var sources = []source{
	{servingNamespace, activatorSelector, 9090, []stage{
		{"Begin in Redis", "libra_pool_call_duration_seconds", "operation", "begin"},
		{"End in Redis", "libra_pool_call_duration_seconds", "operation", "end"},
		{"table fetched from the predictor", "libra_predict_fetch_duration_seconds", "", ""},
	}},
	{libraNamespace, "app=libra-agent", 8080, []stage{
		{"agent: from news of a loan to the limits written", "libra_agent_wake_seconds", "", ""},
		{"agent: from use at the threshold to the donor restored", "libra_agent_safeguard_reaction_seconds", "", ""},
		{"agent: more in force than is owed, until borrowers were shrunk", "libra_agent_exceeded_seconds", "", ""},
	}},
	{libraNamespace, "app=libra-resizer", 8080, []stage{
		{"controller: from the intent to the record in the API", "libra_resizer_resize_latency_seconds", "", ""},
	}},
}

// histograms are the buckets of the stages so far, by name, each from its upper bound to
// how many were not above it.
type histograms map[string]map[float64]uint64

// readStages reads them of the pods that there are. A part that cannot be asked has none:
// Knative exports no metrics unless it is told to.
func (d *demo) readStages(ctx context.Context) (histograms, error) {
	found := histograms{}
	for _, s := range sources {
		var pods corev1.PodList
		if err := d.kubectl.get(ctx, &pods, "pods", "-n", s.namespace, "-l", s.selector); err != nil {
			return nil, err
		}
		for _, p := range pods.Items {
			out, err := d.kubectl.run(ctx, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", s.namespace, p.Name, s.port))
			if err != nil {
				continue
			}
			parser := expfmt.NewTextParser(model.UTF8Validation)
			families, err := parser.TextToMetricFamilies(bytes.NewReader(out))
			if err != nil {
				return nil, fmt.Errorf("metrics of pod %s: %w", p.Name, err)
			}
			for _, st := range s.stages {
				found.add(st, families[st.metric])
			}
		}
	}
	return found, nil
}

func (h histograms) add(s stage, family *dto.MetricFamily) {
	for _, m := range family.GetMetric() {
		if s.label != "" && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == s.label && l.GetValue() == s.value
		}) {
			continue
		}
		buckets := h[s.name]
		if buckets == nil {
			buckets = map[float64]uint64{}
			h[s.name] = buckets
		}
		for _, b := range m.GetHistogram().GetBucket() {
			buckets[b.GetUpperBound()] += b.GetCumulativeCount()
		}
	}
}

// since are the stages taken after an earlier reading, in the order of the sources.
func (h histograms) since(before histograms) []evaluation.Stage {
	var stages []evaluation.Stage
	for _, s := range sources {
		for _, st := range s.stages {
			after, ok := h[st.name]
			if !ok {
				continue
			}
			var bounds []float64
			counts := map[float64]uint64{}
			for bound, n := range after {
				bounds = append(bounds, bound)
				// A part that was restarted has counted from nothing.
				if counts[bound] = n; n >= before[st.name][bound] {
					counts[bound] -= before[st.name][bound]
				}
			}
			slices.Sort(bounds)
			all := counts[bounds[len(bounds)-1]]
			if all == 0 {
				continue
			}
			stages = append(stages, evaluation.Stage{Name: st.name, Count: int64(all),
				P50: quantile(bounds, counts, 0.50), P99: quantile(bounds, counts, 0.99)})
		}
	}
	return stages
}

// quantile is what Prometheus' histogram_quantile gives: between a bucket's bounds it
// takes what it has as evenly spread.
func quantile(bounds []float64, cumulative map[float64]uint64, q float64) float64 {
	rank := q * float64(cumulative[bounds[len(bounds)-1]])
	low, below := 0.0, 0.0
	for _, bound := range bounds {
		n := float64(cumulative[bound])
		switch {
		case n < rank:
			low, below = bound, n
		case math.IsInf(bound, 1):
			return low
		default:
			return low + (bound-low)*(rank-below)/(n-below)
		}
	}
	return low
}
