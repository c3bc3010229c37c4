package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/settings"
)

const (
	violationsMetric = "libra_agent_invariant_violations_total"
	metricsPort      = "8080"
)

// lookAtMetrics asks the agents how many violations they have counted, if they have
// the metric, and looks for OOM kills among Libra's own parts.
func (w *watcher) lookAtMetrics(ctx context.Context) (failed error) {
	for _, namespace := range []string{rig.LibraNamespace, settings.AgentNamespace, servingNamespace} {
		pods, err := w.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			w.mu.Lock()
			w.noteOOMs(p)
			w.mu.Unlock()
			if p.Labels["app"] != "libra-agent" || p.Status.PodIP == "" || len(p.Status.ContainerStatuses) == 0 {
				continue
			}
			n, err := scrape(ctx, "http://"+p.Status.PodIP+":"+metricsPort+"/metrics")
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("read the metrics of pod %s: %w", p.Name, err))
				continue
			}
			id := containerID(p.Status.ContainerStatuses[0])
			w.mu.Lock()
			if !w.began {
				w.toldBefore[id] = n
			}
			w.told[id] = n
			w.mu.Unlock()
		}
	}
	return failed
}

var metricsClient = &http.Client{Transport: &http.Transport{}, Timeout: time.Second}

// scrape returns the violations that an agent has counted, summed over all rules.
func scrape(ctx context.Context, url string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := metricsClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", url, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	sum := 0.0
	for _, m := range families[violationsMetric].GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	return sum, err
}
