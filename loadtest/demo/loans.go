package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
)

// counter is a counter that a part exports.
type counter struct {
	name   string
	labels map[string]string
	value  float64
}

// agentCounters returns the counters of all node agents.
func (d *demo) agentCounters(ctx context.Context) ([]counter, error) {
	return d.counters(ctx, agentNamespace, "app=libra-agent", 8080)
}

// counters returns the counters of all pods that a selector selects, including the buckets
// of histograms.
func (d *demo) counters(ctx context.Context, namespace, selector string, port int) ([]counter, error) {
	var pods corev1.PodList
	if err := d.kubectl.get(ctx, &pods, "pods", "-n", namespace, "-l", selector); err != nil {
		return nil, err
	}
	var all []counter
	for _, p := range pods.Items {
		out, err := d.kubectl.run(ctx, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", namespace, p.Name, port))
		if err != nil {
			return nil, err
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(out))
		if err != nil {
			return nil, fmt.Errorf("metrics of pod %s: %w", p.Name, err)
		}
		for name, family := range families {
			for _, m := range family.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if c := m.GetCounter(); c != nil {
					all = append(all, counter{name, labels, c.GetValue()})
				}
				for _, b := range m.GetHistogram().GetBucket() {
					of := maps.Clone(labels)
					of["le"] = strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)
					all = append(all, counter{name + "_bucket", of, float64(b.GetCumulativeCount())})
				}
			}
		}
	}
	return all, nil
}

// loans returns what has been lent and borrowed since the node agents started, from their
// counters.
func (d *demo) loans(ctx context.Context) (l evaluation.Loans, err error) {
	counters, err := d.agentCounters(ctx)
	if err != nil {
		return l, err
	}
	const mb = 1e6
	for _, c := range counters {
		switch c.name {
		case "libra_agent_lent_cpu_total":
			l.Harvested.CoreSeconds += c.value
		case "libra_agent_borrowed_cpu_total":
			l.Accelerated.CoreSeconds += c.value
		case "libra_agent_borrowed_memory_total":
			l.Accelerated.MBSeconds += c.value / mb
		case "libra_agent_available_cpu_total":
			l.Idle.CoreSeconds += c.value
		case "libra_agent_available_memory_total":
			l.Idle.MBSeconds += c.value / mb
		case "libra_agent_safeguards_total":
			l.Safeguarded += c.value
		}
	}
	return l, nil
}

// weighed returns how many requests the node agents have weighed since they started, and
// how soon.
func (d *demo) weighed(ctx context.Context) (w evaluation.Weighed, err error) {
	counters, err := d.agentCounters(ctx)
	if err != nil {
		return w, err
	}
	within := map[string]*float64{"0.005": &w.Within5MS, "0.01": &w.Within10MS, "+Inf": &w.Requests}
	for _, c := range counters {
		if sum, ok := within[c.labels["le"]]; ok && c.name == "libra_agent_weights_wake_seconds_bucket" {
			*sum += c.value
		}
	}
	return w, nil
}
