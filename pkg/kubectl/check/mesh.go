package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	networkcfg "knative.dev/networking/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

var meshChecks = []Check{
	{
		ID: "mesh-addressability", run: meshAddressability,
		Looks: "a mesh in which the activator cannot address single pods (`mesh-compatibility-mode`, `enable-mesh-pod-addressability` and `ingress-class` in `config-network`, PeerAuthentications of the mode `STRICT`): Libra only observes there",
	},
	{
		ID: "mesh-parts", run: meshParts, installed: true,
		Looks: "a mesh that keeps Libra's parts from reaching one another: NetworkPolicies that refuse what comes through an ambient mesh, and `STRICT` where an activator or an agent is outside the mesh",
	},
}

var kindPeerAuthentication = schema.GroupVersionKind{Group: "security.istio.io", Version: "v1", Kind: "PeerAuthentication"}

const (
	// istioNamespace has what Istio applies to the whole mesh, unless Istio is configured otherwise.
	istioNamespace = "istio-system"
	// netIstio is the ingress class of net-istio, and Knative's default.
	netIstio = "istio.ingress.networking.knative.dev"
	strict   = "STRICT"
	// hbonePort is the port of each pod to which an ambient mesh sends.
	hbonePort = 15008

	applyAmbient = "kubectl apply -k manifests/components/istio-ambient"
)

// The ports of queue-proxy, for HTTP/1 and HTTP/2, and of Redis.
const (
	queuePort  = 8012
	queuePort2 = 8013
	redisPort  = 6379
)

// mesh is how the pods of a namespace are in a mesh.
type mesh string

const (
	outside mesh = ""
	sidecar mesh = "sidecars"
	ambient mesh = "ambient"
)

// meshOf returns the mesh of a namespace, by its labels.
func meshOf(l map[string]string) mesh {
	switch {
	case l["istio-injection"] == "enabled", l["linkerd.io/inject"] == "enabled", l["istio.io/rev"] != "" && l["istio-injection"] != "disabled":
		return sidecar
	case l["istio.io/dataplane-mode"] == "ambient":
		return ambient
	}
	return outside
}

func meshAddressability(ctx context.Context, c *Cluster) ([]Finding, error) {
	const name = "config-network"
	about := Object{"configmap", swap.Namespace, name}
	cm, err := c.configMap(ctx, swap.Namespace, name)
	if err != nil {
		return nil, err
	}
	set := func(data string) string {
		return fmt.Sprintf("kubectl -n %s patch configmap %s --type merge -p '{\"data\":{%s}}' && kubectl -n %[1]s rollout restart deployment activator", swap.Namespace, name, data)
	}
	const address = `"enable-mesh-pod-addressability":"true","mesh-compatibility-mode":"disabled"`
	addressable := strings.EqualFold(cm.Data[networkcfg.EnableMeshPodAddressabilityKey], "true")
	class := cm.Data[networkcfg.DefaultIngressClassKey]
	routed := class == "" || class == netIstio
	namespaces, err := c.allNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	activators := meshOf(namespaces[swap.Namespace].Labels)
	if addressable && !routed && activators == sidecar {
		return []Finding{failure(about, set(`"enable-mesh-pod-addressability":null`),
			"%s is true, but only net-istio makes the routes for that, and the ingress class is %s: a request may reach another pod than the one that Libra counts it in", networkcfg.EnableMeshPodAddressabilityKey, class)}, nil
	}
	if mode := networkcfg.MeshCompatibilityMode(strings.ToLower(cm.Data[networkcfg.MeshCompatibilityModeKey])); mode == networkcfg.MeshCompatibilityModeEnabled {
		remedy := set(`"mesh-compatibility-mode":"auto"`)
		if routed && activators == sidecar {
			remedy = set(address)
		}
		return []Finding{failure(about, remedy, "%s is enabled, so the activator does not address single pods: Libra only observes", networkcfg.MeshCompatibilityModeKey)}, nil
	}
	if addressable {
		return []Finding{fine(about, "the activator addresses single pods, in a mesh too")}, nil
	}
	policies, err := c.objects(ctx, kindPeerAuthentication, "")
	if err != nil {
		return nil, err
	}
	functions, err := c.functionNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, ns := range functions {
		if meshOf(namespaces[ns].Labels) != sidecar || effective(policies, ns, labels.Set{api.EnabledLabel: api.EnabledValue}, queuePort) != strict {
			continue
		}
		remedy := admitQueueProxy(ns)
		if routed {
			remedy = set(address)
		}
		found = append(found, failure(Object{Kind: "namespace", Name: ns}, remedy,
			"its pods have sidecars that accept only mTLS, and the activator addresses single pods without mTLS: it uses the Services instead, and Libra only observes"))
	}
	if found == nil {
		found = append(found, fine(about, "no mesh keeps the activator from addressing single pods"))
	}
	return found, nil
}

// admitQueueProxy returns the command that has the sidecars of a namespace's functions let the activator in without mTLS.
func admitQueueProxy(namespace string) string {
	return fmt.Sprintf(`kubectl apply -f - <<< '{"apiVersion":%q,"kind":%q,"metadata":{"namespace":%q,"name":"libra-functions"},"spec":{"selector":{"matchLabels":{%q:%q}},"mtls":{"mode":%q},"portLevelMtls":{"%d":{"mode":"PERMISSIVE"},"%d":{"mode":"PERMISSIVE"}}}}'`,
		kindPeerAuthentication.GroupVersion(), kindPeerAuthentication.Kind, namespace, api.EnabledLabel, api.EnabledValue, strict, queuePort, queuePort2)
}

// effective returns the mode in which a pod of a namespace takes requests at a port: that of the pod's own policy, or else its
// namespace's, or else the mesh's. If none sets a mode it is empty, which is permissive.
func effective(policies []unstructured.Unstructured, namespace string, pod labels.Set, port int) string {
	var own, shared, whole string
	for _, p := range policies {
		mode, _, _ := unstructured.NestedString(p.Object, "spec", "mtls", "mode")
		selector, _, _ := unstructured.NestedStringMap(p.Object, "spec", "selector", "matchLabels")
		switch {
		case p.GetNamespace() == namespace && len(selector) > 0:
			if labels.SelectorFromSet(selector).Matches(pod) {
				at, _, _ := unstructured.NestedString(p.Object, "spec", "portLevelMtls", strconv.Itoa(port), "mode")
				own = said(at, mode)
			}
		case len(selector) > 0:
		case p.GetNamespace() == namespace:
			shared = said(mode)
		case p.GetNamespace() == istioNamespace:
			whole = said(mode)
		}
	}
	return said(own, shared, whole)
}

// said returns the first mode that is set.
func said(modes ...string) string {
	for _, mode := range modes {
		if mode != "" && mode != "UNSET" {
			return mode
		}
	}
	return ""
}

func meshParts(ctx context.Context, c *Cluster) ([]Finding, error) {
	namespaces, err := c.allNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	about := Object{Kind: "namespace", Name: settings.Namespace}
	var found []Finding
	own := meshOf(namespaces[settings.Namespace].Labels)
	switch own {
	case outside:
		return []Finding{fine(about, "it is outside any mesh, and its pods accept plain requests")}, nil
	case sidecar:
		found = append(found, warning(about, fmt.Sprintf("kubectl label namespace %s %s istio-injection=disabled --overwrite", settings.Namespace, settings.AgentNamespace),
			"its pods get sidecars, which they do not need, and which the namespace refuses unless Istio's CNI plugin is installed"))
	case ambient:
		var list networkingv1.NetworkPolicyList
		if err := c.client.List(ctx, &list, client.InNamespace(settings.Namespace)); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(list.Items, admitsAmbient) {
			found = append(found, failure(about, applyAmbient, "it is in an ambient mesh, which sends to port %d of Redis' pod, and its NetworkPolicies refuse that", hbonePort))
		}
	}
	policies, err := c.objects(ctx, kindPeerAuthentication, "")
	if err != nil {
		return found, err
	}
	if effective(policies, settings.Namespace, labels.Set{"app": redisApp}, redisPort) == strict {
		clients := map[string]string{swap.Namespace: "activators", settings.AgentNamespace: "agents"}
		for _, ns := range slices.Sorted(maps.Keys(clients)) {
			if meshOf(namespaces[ns].Labels) == outside {
				found = append(found, failure(Object{Kind: "namespace", Name: ns}, fmt.Sprintf("kubectl label namespace %s %s", ns, joins[own]),
					"it is outside the mesh, and Redis accepts only mTLS: its %s do not reach Redis, and nothing is lent", clients[ns]))
			}
		}
	}
	if found == nil {
		found = append(found, fine(about, "Libra's parts reach one another through the mesh"))
	}
	return found, nil
}

// joins are the labels by which namespaces join a mesh.
var joins = map[mesh]string{sidecar: "istio-injection=enabled", ambient: "istio.io/dataplane-mode=ambient"}

// admitsAmbient reports whether a policy lets traffic through an ambient mesh into Redis' pod.
func admitsAmbient(p networkingv1.NetworkPolicy) bool {
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	return err == nil && selector.Matches(labels.Set{"app": redisApp}) && slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
		return slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port != nil && p.Port.IntValue() == hbonePort })
	})
}
