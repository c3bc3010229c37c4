package check

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

const dashboardName = "libra-dashboard-overview"

var metricChecks = []Check{
	{
		ID: "monitors", run: monitors, installed: true,
		Looks: "PodMonitors, rules and dashboards, where the Prometheus operator is there",
		Fine:  "the Prometheus operator is not there, or has all of Libra's PodMonitors and rules",
	},
}

func monitors(ctx context.Context, c *Cluster) ([]Finding, error) {
	if known, err := c.has(kindPodMonitor); err != nil || !known {
		return nil, err
	}
	const remedy = "kubectl apply --server-side -f libra-monitoring.yaml"
	var found []Finding
	for _, of := range []struct{ namespace, name string }{
		{swap.Namespace, swap.LibraName}, {settings.AgentNamespace, settings.Agent}, {settings.Namespace, predictorName}, {settings.Namespace, settings.Resizer},
	} {
		monitor := &unstructured.Unstructured{}
		monitor.SetGroupVersionKind(kindPodMonitor)
		if is, err := c.get(ctx, of.namespace, of.name, monitor); err != nil {
			return found, err
		} else if !is {
			found = append(found, warning(Object{"podmonitor", of.namespace, of.name}, remedy, "it is not there: Prometheus does not get the metrics of the %s", strings.TrimPrefix(of.name, "libra-")))
		}
	}
	rules, err := c.objects(ctx, kindPrometheusRule, settings.Namespace)
	if err != nil {
		return found, err
	}
	if len(rules) == 0 {
		found = append(found, warning(Object{Kind: "prometheusrule", Namespace: settings.Namespace}, remedy, "there is none: no alert fires when Libra does harm"))
	}
	if is, err := c.get(ctx, settings.Namespace, dashboardName, &corev1.ConfigMap{}); err != nil {
		return found, err
	} else if !is {
		found = append(found, warning(Object{"configmap", settings.Namespace, dashboardName}, remedy, "it is not there: Grafana has no dashboards for Libra"))
	}
	return found, nil
}
