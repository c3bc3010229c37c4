package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/settings"
)

const (
	violationsMetric = "libra_agent_invariant_violations"
	metricsPort      = "8080"
)

// lookAtMetrics asks the agents, where they have the metric, how many violations they
// have seen, and looks for OOM kills among Libra's own parts.
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
				failed = errors.Join(failed, fmt.Errorf("metrics of pod %s: %w", p.Name, err))
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
	return sumOf(resp.Body, violationsMetric)
}

// sumOf adds up the series of a metric, with or without a suffix for its unit or kind.
func sumOf(exposition io.Reader, metric string) (float64, error) {
	sum := 0.0
	lines := bufio.NewScanner(exposition)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, metric) {
			continue
		}
		// A label's value may have blanks.
		fields := strings.Fields(line[strings.LastIndexByte(line, '}')+1:])
		if len(fields) == 0 {
			continue
		}
		if fields[0] == strings.Split(line, " ")[0] {
			fields = fields[1:]
		}
		if len(fields) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", line, err)
		}
		sum += v
	}
	return sum, lines.Err()
}
