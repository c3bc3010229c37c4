package check

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/pkg/settings"
)

const (
	configObservability = "config-observability"
	dashboardName       = "libra-dashboard-overview"
)

var metricChecks = []Check{
	{
		ID: "activator-metrics", run: activatorMetrics,
		Looks: "`metrics-protocol` in Knative's `config-observability`: without `prometheus` the activator's metrics do not arrive",
	},
	{
		ID: "monitors", run: monitors, installed: true,
		Looks: "PodMonitors, rules and dashboards, where the Prometheus operator is there",
		Fine:  "the Prometheus operator is not there, or has all of Libra's PodMonitors and rules",
	},
}

func activatorMetrics(ctx context.Context, c *Cluster) ([]Finding, error) {
	about := Object{"configmap", servingNamespace, configObservability}
	cm, err := c.configMap(ctx, servingNamespace, configObservability)
	if err != nil {
		return nil, err
	}
	const key, want = "metrics-protocol", "prometheus"
	if is := cm.Data[key]; is != want {
		return []Finding{warning(about,
			fmt.Sprintf(`kubectl -n %s patch configmap %s --type merge -p '{"data":{%q:%q}}' && kubectl -n %[1]s rollout restart deployment/activator  # replaces the pods of all Services, one after the other`,
				servingNamespace, configObservability, key, want),
			"%s is %q, want %s: what requests lend and borrow is not in Prometheus", key, is, want)}, nil
	}
	return []Finding{fine(about, "the activator's metrics are for Prometheus")}, nil
}

func monitors(ctx context.Context, c *Cluster) ([]Finding, error) {
	if known, err := c.has(kindPodMonitor); err != nil || !known {
		return nil, err
	}
	const remedy = "kubectl apply -k dashboards/operator"
	var found []Finding
	for _, of := range []struct{ namespace, name string }{
		{servingNamespace, "libra-activator"}, {settings.AgentNamespace, agentName}, {settings.Namespace, predictorName}, {settings.Namespace, resizerName},
	} {
		monitor := &unstructured.Unstructured{}
		monitor.SetGroupVersionKind(kindPodMonitor)
		if is, err := c.get(ctx, of.namespace, of.name, monitor); err != nil {
			return found, err
		} else if !is {
			found = append(found, warning(Object{"podmonitor", of.namespace, of.name}, remedy, "it is not there: metrics of %s do not arrive", strings.TrimPrefix(of.name, "libra-")))
		}
	}
	rules, err := c.objects(ctx, kindPrometheusRule, settings.Namespace)
	if err != nil {
		return found, err
	}
	if len(rules) == 0 {
		found = append(found, warning(Object{Kind: "prometheusrule", Namespace: settings.Namespace}, remedy, "there is none: nothing tells when Libra does harm"))
	}
	if is, err := c.get(ctx, settings.Namespace, dashboardName, &corev1.ConfigMap{}); err != nil {
		return found, err
	} else if !is {
		found = append(found, warning(Object{"configmap", settings.Namespace, dashboardName}, remedy, "it is not there: Grafana has no dashboards of Libra's"))
	}
	return found, nil
}
