package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/swap"
)

const (
	configDeployment = "config-deployment"
	configFeatures   = "config-features"
)

var namespaceChecks = []Check{
	{
		ID: "queue-proxy-limits", run: queueProxyLimits,
		Looks: "limits that Knative gives every queue-proxy (`config-deployment`, `queueproxy.resource-defaults` in `config-features`): the pod's own quota would bind, so its function is only observed",
		Fine:  "Knative gives queue-proxy no limits",
	},
	{
		ID: "limit-range", run: limitRanges,
		Looks: "LimitRanges in namespaces of functions that give queue-proxy a limit, or refuse ceilings",
		Fine:  "no LimitRange is in the way",
	},
	{
		ID: "resource-quota", run: resourceQuotas,
		Looks: "ResourceQuotas on `limits.cpu` and `limits.memory` in namespaces of functions: they accept a pod only if queue-proxy has limits, and refuse ceilings of pods from before them",
		Fine:  "no ResourceQuota counts limits",
	},
	{
		ID: "source-labels", run: sourceLabels,
		Looks: "labels `libra.dev/source` of namespaces and nodes that do not name a source",
		Fine:  "every label libra.dev/source names a source",
	},
}

func queueProxyLimits(ctx context.Context, c *Cluster) ([]Finding, error) {
	deployment, err := c.configMap(ctx, swap.Namespace, configDeployment)
	if err != nil {
		return nil, err
	}
	features, err := c.configMap(ctx, swap.Namespace, configFeatures)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, key := range []string{"queue-sidecar-cpu-limit", "queue-sidecar-memory-limit"} {
		if value := deployment.Data[key]; value != "" {
			found = append(found, failure(Object{"configmap", swap.Namespace, configDeployment}, unset(configDeployment, key), "%s is %s, a limit for every queue-proxy: functions are only observed", key, value))
		}
	}
	const defaults = "queueproxy.resource-defaults"
	if features.Data[defaults] == "enabled" {
		found = append(found, failure(Object{"configmap", swap.Namespace, configFeatures}, unset(configFeatures, defaults), "%s is enabled, which gives every queue-proxy limits: functions are only observed", defaults))
	}
	return found, nil
}

func unset(configMap, key string) string {
	return fmt.Sprintf(`kubectl -n %s patch configmap %s --type merge -p '{"data":{%q:null}}'`, swap.Namespace, configMap, key)
}

// functionNamespaces are those that have a function, sorted.
func (c *Cluster) functionNamespaces(ctx context.Context) ([]string, error) {
	functions, err := c.allFunctions(ctx)
	names := map[string]bool{}
	for _, f := range functions {
		names[f.rev.Namespace] = true
	}
	return slices.Sorted(maps.Keys(names)), err
}

func limitRanges(ctx context.Context, c *Cluster) ([]Finding, error) {
	names, err := c.functionNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, name := range names {
		var list corev1.LimitRangeList
		if err := c.client.List(ctx, &list, client.InNamespace(name)); err != nil {
			return found, err
		}
		for _, lr := range list.Items {
			for i, item := range lr.Spec.Limits {
				found = append(found, limitRange(Object{"limitrange", lr.Namespace, lr.Name}, i, item)...)
			}
		}
	}
	return found, nil
}

// limitRange checks one item of a LimitRange.
func limitRange(about Object, index int, item corev1.LimitRangeItem) []Finding {
	remove := func(what string) string {
		return fmt.Sprintf(`{"op":"remove","path":"/spec/limits/%d/%s"}`, index, what)
	}
	patch := func(operations string) string {
		return fmt.Sprintf("kubectl -n %s patch limitrange %s --type json -p '[%s]'", about.Namespace, about.Name, operations)
	}
	_, maxCPU := item.Max[corev1.ResourceCPU]
	switch {
	case item.Type == corev1.LimitTypeContainer && !api.FromList(item.Default).IsZero():
		operations := remove("default")
		if len(item.Max) > 0 {
			operations += "," + remove("max") // it would become the default
		}
		return []Finding{failure(about, patch(operations), "it gives every container without a limit one of %s, including queue-proxy: functions are only observed", api.FromList(item.Default))}
	case maxCPU:
		return []Finding{warning(about, patch(remove("max/cpu")), "it allows a %s no more than %s of CPU: higher ceilings are set only in the cgroup", item.Type, item.Max.Cpu())}
	case !item.MaxLimitRequestRatio.Cpu().IsZero():
		return []Finding{warning(about, patch(remove("maxLimitRequestRatio/cpu")), "it allows a limit of no more than %s times the request: higher ceilings are set only in the cgroup", item.MaxLimitRequestRatio.Cpu())}
	}
	return nil
}

func resourceQuotas(ctx context.Context, c *Cluster) ([]Finding, error) {
	names, err := c.functionNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, name := range names {
		var list corev1.ResourceQuotaList
		if err := c.client.List(ctx, &list, client.InNamespace(name)); err != nil {
			return found, err
		}
		for _, q := range list.Items {
			var counted, operations []string
			for _, name := range []corev1.ResourceName{corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory} {
				if limit, ok := q.Spec.Hard[name]; ok {
					counted = append(counted, fmt.Sprintf("%s, up to %s", name, limit.String()))
					operations = append(operations, fmt.Sprintf(`{"op":"remove","path":"/spec/hard/%s"}`, name))
				}
			}
			if counted != nil {
				found = append(found, failure(Object{"resourcequota", q.Namespace, q.Name},
					fmt.Sprintf("kubectl -n %s patch resourcequota %s --type json -p '[%s]'  # a quota on requests binds as well", q.Namespace, q.Name, strings.Join(operations, ",")),
					"it counts %s: it accepts a pod only if queue-proxy has limits, and Libra only observes such pods; pods from before it keep the ceilings in their specs, which it counts, until they are replaced, and get others only in the cgroup", strings.Join(counted, ", and ")))
			}
		}
	}
	return found, nil
}

func sourceLabels(ctx context.Context, c *Cluster) ([]Finding, error) {
	namespaces, err := c.allNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := c.allNodes(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	look := func(kind, name string, labels map[string]string) {
		value, ok := labels[api.SourceLabel]
		if _, err := api.ParseSource(value); ok && err != nil {
			found = append(found, warning(Object{Kind: kind, Name: name}, fmt.Sprintf("kubectl label %s %s --overwrite %s=%s", kind, name, api.SourceLabel, api.SourceNode),
				"its label %s is ignored: %v", api.SourceLabel, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		look("namespace", name, namespaces[name].Labels)
	}
	for _, n := range nodes {
		look("node", n.Name, n.Labels)
	}
	return found, nil
}
