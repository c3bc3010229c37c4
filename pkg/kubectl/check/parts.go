package check

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const (
	predictorName = "libra-predictor"

	applyLibra = "kubectl apply --server-side -f libra.yaml"
)

var partChecks = []Check{
	{
		ID: "agents", run: agents, installed: true,
		Looks: "a ready node agent on every node that can have one",
	},
	{
		ID: "resizer-ready", run: deployed(settings.Resizer, applyLibra), installed: true,
		Looks: "the resizer's Deployment",
	},
	{
		ID: "predictor-ready", run: predictorReady, installed: true,
		Looks: "the predictor: its InferenceService, or its plain Deployment",
	},
}

// available reports whether a Deployment has as many pods as it should.
func available(about Object, d *appsv1.Deployment) []Finding {
	want, have := ptr.Deref(d.Spec.Replicas, 1), d.Status.AvailableReplicas
	describe := fmt.Sprintf("kubectl -n %s describe deployment,pods --selector %s", d.Namespace, labels.Set(d.Spec.Selector.MatchLabels))
	switch {
	case want == 0:
		return []Finding{failure(about, fmt.Sprintf("kubectl -n %s scale deployment %s --replicas=1", d.Namespace, d.Name), "it is scaled to 0 pods")}
	case have == 0:
		return []Finding{failure(about, describe, "none of %d pods is available", want)}
	case have < want:
		return []Finding{warning(about, describe, "%d of %d pods are available", have, want)}
	}
	return []Finding{fine(about, "%d of %d pods are available", have, want)}
}

// deployed looks at a Deployment of Libra's. remedy is for a missing one.
func deployed(name, remedy string) look {
	return func(ctx context.Context, c *Cluster) ([]Finding, error) {
		about := Object{"deployment", settings.Namespace, name}
		d := &appsv1.Deployment{}
		found, err := c.get(ctx, settings.Namespace, name, d)
		switch {
		case err != nil:
			return nil, err
		case !found:
			return []Finding{failure(about, remedy, "it is not there")}, nil
		}
		return available(about, d), nil
	}
}

func predictorReady(ctx context.Context, c *Cluster) ([]Finding, error) {
	services, err := c.objects(ctx, kindInferenceService, settings.Namespace)
	if err != nil {
		return nil, err
	}
	remedy := applyLibra + " -f libra-predictor-plain.yaml"
	if len(services) > 0 {
		remedy = fmt.Sprintf("kubectl -n %s describe inferenceservice %s", settings.Namespace, services[0].GetName())
	} else if known, err := c.has(kindInferenceService); err == nil && known {
		remedy = applyLibra + " -f libra-predictor-kserve.yaml"
	}
	return deployed(predictorName, remedy)(ctx, c)
}

func agents(ctx context.Context, c *Cluster) ([]Finding, error) {
	about := Object{"daemonset", settings.AgentNamespace, settings.Agent}
	ds := &appsv1.DaemonSet{}
	if found, err := c.get(ctx, settings.AgentNamespace, settings.Agent, ds); err != nil {
		return nil, err
	} else if !found {
		return []Finding{failure(about, applyLibra, "it is not there: nothing gives back what is lent")}, nil
	}
	nodes, err := c.allNodes(ctx)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := c.client.List(ctx, &pods, client.InNamespace(settings.AgentNamespace), client.MatchingLabels(ds.Spec.Template.Labels)); err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && api.PodReady(pod) {
			ready[pod.Spec.NodeName] = true
		}
	}
	without, with := groups{}, 0
	for i := range nodes {
		switch {
		case !takesAgent(&nodes[i]):
		case ready[nodes[i].Name]:
			with++
		default:
			without.add("", nodes[i].Name)
		}
	}
	var found []Finding
	without.each(func(_ string, nodes []string, on Object) {
		of := warning
		if with == 0 {
			of = failure
		}
		found = append(found, of(on, fmt.Sprintf("kubectl -n %s describe pods --field-selector spec.nodeName=%s", settings.AgentNamespace, nodes[0]),
			"no ready agent: functions there run with what their owners configured"))
	})
	if len(without) == 0 {
		found = append(found, fine(about, "an agent is ready on each of the %d nodes that can have one", with))
	}
	return found, nil
}
