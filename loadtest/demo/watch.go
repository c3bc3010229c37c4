package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/prometheus"
)

// watchEvery is how often Prometheus looks at Libra's parts.
const watchEvery = 5 * time.Second

// watch starts the box's Prometheus, so that one can look on while it is measured, and has
// Knative export what it is to see.
func (d *demo) watch(ctx context.Context) (*prometheus.Server, error) {
	binary, err := d.tool(d.prometheus, "prometheus", "prometheus", true)
	if err != nil {
		return nil, err
	}
	server, err := prometheus.Start(ctx, prometheus.Options{
		Binary: binary, Kubeconfig: d.kubeconfig, Dir: d.path("prometheus"), Interval: watchEvery,
	})
	if err != nil {
		return nil, err
	}
	d.say("Prometheus: %s until the end, with Libra's jobs and rules; docs/dashboards.md has the dashboards for Grafana", server.URL)
	if err := d.exportMetrics(ctx); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return server, nil
}

// exportMetrics has Knative export its metrics. The activator reads that when it starts,
// so that a stock one is started anew: it is to do as much as Libra's.
func (d *demo) exportMetrics(ctx context.Context) error {
	var config corev1.ConfigMap
	if err := d.kubectl.get(ctx, &config, "-n", servingNamespace, "configmap", "config-observability"); err != nil {
		return err
	}
	if config.Data["metrics-protocol"] == "prometheus" {
		return nil
	}
	d.say("metrics: having Knative export them")
	if _, err := d.kubectl.run(ctx, "-n", servingNamespace, "patch", "configmap", "config-observability", "--type=merge",
		`--patch={"data":{"metrics-protocol":"prometheus"}}`); err != nil {
		return err
	}
	if _, err := d.kubectl.run(ctx, slices.Concat([]string{"rollout", "restart"}, activator)...); err != nil {
		return err
	}
	return d.activatorReplaced(ctx)
}

// alerts are the names of those that fired since the command began.
func (d *demo) alerts(ctx context.Context, server *prometheus.Server) ([]string, error) {
	samples, err := server.Query(ctx, fmt.Sprintf(`count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[%ds]))`,
		int(time.Since(d.start).Seconds())+1))
	if err != nil {
		return nil, fmt.Errorf("which alerts fired: %w", err)
	}
	fired := []string{} // none, which is not the same as not known
	for _, s := range samples {
		fired = append(fired, s.Labels["alertname"])
	}
	slices.Sort(fired)
	return fired, nil
}
