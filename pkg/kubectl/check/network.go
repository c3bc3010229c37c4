package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkcfg "knative.dev/networking/pkg/config"

	"libra.dev/libra/pkg/settings"
)

var networkChecks = []Check{
	{
		ID: "network-policies", run: networkPolicies,
		Looks: "does something enforce NetworkPolicies? They keep others from the shipped Redis and from the predictor. Known are Antrea, Calico, Cilium, kindnet, Kube-router, OVN-Kubernetes, Weave Net, GKE's Dataplane V2, and the agents of EKS and AKS",
	},
	{
		ID: "mesh-addressability", run: meshAddressability,
		Looks: "a mesh in which the activator cannot address single pods (`mesh-compatibility-mode` and `enable-mesh-pod-addressability` in `config-network`): Libra only observes there",
	},
}

// enforcers are the DaemonSets of what enforces NetworkPolicies, by name, and whose they are.
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
		return []Finding{warning(wholeCluster, "kubectl get daemonsets --all-namespaces  # is there one of a network plugin that enforces them?", unenforced)}, nil
	}
	probe := fmt.Sprintf("kubectl run libra-probe --rm -i --restart=Never --image=busybox:1.37 -- nc -z -w 3 redis.%s 6379  # from a namespace that is not Libra's: a connection says that nothing enforces them", settings.Namespace)
	return []Finding{warning(wholeCluster, probe, unenforced)}, nil
}

const unenforced = "not known: nothing is found that is known to enforce NetworkPolicies; where nothing does, give Redis users (docs/redis.md)"

func amazonEnforces(spec corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return slices.Contains(c.Args, "--enable-network-policy=true")
	})
}

// meshLabels are those of namespaces and Services by which pods are in a mesh.
var meshLabels = map[string][]string{
	"istio-injection": {"enabled"}, "istio.io/dataplane-mode": {"ambient"}, "istio.io/rev": nil, "linkerd.io/inject": {"enabled"},
}

func meshed(labels map[string]string) bool {
	for key, values := range meshLabels {
		if value, ok := labels[key]; ok && value != "" && (values == nil || slices.Contains(values, value)) {
			return true
		}
	}
	return false
}

func meshAddressability(ctx context.Context, c *Cluster) ([]Finding, error) {
	const name = "config-network"
	about := Object{"configmap", servingNamespace, name}
	cm, err := c.configMap(ctx, servingNamespace, name)
	if err != nil {
		return nil, err
	}
	addressable := strings.EqualFold(cm.Data[networkcfg.EnableMeshPodAddressabilityKey], "true")
	mode := networkcfg.MeshCompatibilityMode(strings.ToLower(cm.Data[networkcfg.MeshCompatibilityModeKey]))
	const disable = `kubectl -n knative-serving patch configmap config-network --type merge -p '{"data":{"enable-mesh-pod-addressability":"true","mesh-compatibility-mode":"disabled"}}'`
	if mode == networkcfg.MeshCompatibilityModeEnabled {
		return []Finding{failure(about, disable, "%s is enabled, so that the activator does not address single pods: Libra only observes", networkcfg.MeshCompatibilityModeKey)}, nil
	}
	if addressable {
		return []Finding{fine(about, "pods in a mesh are addressed one by one")}, nil
	}
	namespaces, err := c.allNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	functions, err := c.allFunctions(ctx)
	if err != nil {
		return nil, err
	}
	in := map[string]bool{servingNamespace: true}
	for _, f := range functions {
		in[f.rev.Namespace] = true
	}
	var meshes []string
	for name := range in {
		if meshed(namespaces[name].Labels) {
			meshes = append(meshes, name)
		}
	}
	if len(meshes) == 0 {
		return []Finding{fine(about, "no mesh is between the activator and the functions' pods")}, nil
	}
	slices.Sort(meshes)
	return []Finding{warning(about, disable, "pods of %s are in a mesh, and %s is not true: where their Services refuse single pods, Libra only observes",
		strings.Join(meshes, ", "), networkcfg.EnableMeshPodAddressabilityKey)}, nil
}
