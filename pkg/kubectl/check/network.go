package check

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/settings"
)

var networkChecks = []Check{
	{
		ID: "network-policies", run: networkPolicies,
		Looks: "does something enforce NetworkPolicies? They keep others from the shipped Redis and from the predictor. Known are Antrea, Calico, Cilium, kindnet, Kube-router, OVN-Kubernetes, Weave Net, GKE's Dataplane V2, and the agents of EKS and AKS",
	},
}

// enforcers are the DaemonSets that enforce NetworkPolicies, by name, and whose they are.
var enforcers = map[string]string{
	"anetd": "GKE's Dataplane V2", "antrea-agent": "Antrea", "azure-npm": "AKS", "calico-node": "Calico", "canal": "Calico", "cilium": "Cilium",
	"kindnet": "kindnet", "kube-network-policies": "kube-network-policies", "kube-router": "Kube-router", "ovnkube-node": "OVN-Kubernetes", "weave-net": "Weave Net",
}

func networkPolicies(ctx context.Context, c *Cluster) ([]Finding, error) {
	var list appsv1.DaemonSetList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, err
	}
	for _, ds := range list.Items {
		who, ok := enforcers[ds.Name]
		if !ok && ds.Name == "aws-node" && amazonEnforces(ds.Spec.Template.Spec) {
			who, ok = "the VPC CNI of EKS", true
		}
		if ok {
			return []Finding{fine(Object{"daemonset", ds.Namespace, ds.Name}, "%s enforces NetworkPolicies", who)}, nil
		}
	}
	if !c.Installed {
		return []Finding{warning(wholeCluster, "kubectl get daemonsets --all-namespaces  # does one belong to a network plugin that enforces NetworkPolicies?", unenforced)}, nil
	}
	probe := fmt.Sprintf("kubectl run libra-probe --rm -i --restart=Never --image=busybox:1.37 -- nc -z -w 3 redis.%s 6379  # from a namespace that is not Libra's: if it connects, nothing enforces NetworkPolicies", settings.Namespace)
	return []Finding{warning(wholeCluster, probe, unenforced)}, nil
}

const unenforced = "not known: nothing was found that is known to enforce NetworkPolicies; if nothing does, configure users in Redis (docs/redis.md)"

func amazonEnforces(spec corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return slices.Contains(c.Args, "--enable-network-policy=true")
	})
}
