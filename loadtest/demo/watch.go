package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"libra.dev/libra/loadtest/prometheus"
)

// watchEvery is how often Prometheus scrapes Libra's parts.
const watchEvery = 5 * time.Second

// watch starts the box's Prometheus, so that a person can watch the evaluation.
func (d *demo) watch(ctx context.Context) (*prometheus.Server, error) {
	binary, err := d.tool("", "prometheus", "prometheus", true)
	if err != nil {
		return nil, err
	}
	server, err := prometheus.Start(ctx, prometheus.Options{
		Binary: binary, Kubeconfig: d.kubeconfig, Dir: d.path("prometheus"), Interval: watchEvery,
	})
	if err != nil {
		return nil, err
	}
	d.say("Prometheus runs at %s until the end, with Libra's jobs and rules; docs/dashboards.md has the dashboards for Grafana", server.URL)
	return server, nil
}

// alerts returns the names of the alerts that fired since the command began.
func (d *demo) alerts(ctx context.Context, server *prometheus.Server) ([]string, error) {
	samples, err := server.Query(ctx, fmt.Sprintf(`count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[%ds]))`,
		int(time.Since(d.start).Seconds())+1))
	if err != nil {
		return nil, fmt.Errorf("query which alerts fired: %w", err)
	}
	var fired []string
	for _, s := range samples {
		fired = append(fired, s.Labels["alertname"])
	}
	slices.Sort(fired)
	return fired, nil
}
