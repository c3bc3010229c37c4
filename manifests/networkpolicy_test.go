package manifests

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"libra.dev/libra/pkg/settings"
)

// peer is a pod that sends requests.
type peer struct {
	namespace       string
	namespaceLabels labels.Set
	podLabels       labels.Set
}

// pods that are not Libra's, and their labels.
var (
	activatorPod = peer{"knative-serving", nil, labels.Set{"app": "activator"}}
	agentPod     = peer{settings.AgentNamespace, nil, labels.Set{"app": "libra-agent"}}
	resizerPod   = peer{settings.Namespace, nil, labels.Set{"app": "libra-resizer"}}
	prometheus   = peer{"monitoring", labels.Set{"metrics": "enabled"}, labels.Set{"app.kubernetes.io/name": "prometheus"}}
)

func TestOnlyThoseReachPartsWhoNeedThem(t *testing.T) {
	policies := decode[networkingv1.NetworkPolicy](t, "NetworkPolicy")
	redis := labels.Set{"app": "libra-redis"}
	scheduler := labels.Set{"app": "libra-scheduler"}
	predictor := labels.Set{"serving.kserve.io/inferenceservice": "libra", "component": "predictor"}
	plain := labels.Set{"app": "libra-predictor"}
	for _, c := range []struct {
		name string
		from peer
		to   labels.Set
		port string
		want bool
	}{
		{"activator to Redis", activatorPod, redis, "redis", true},
		{"agent to Redis", agentPod, redis, "redis", true},
		{"resizer to Redis", resizerPod, redis, "redis", true},
		{"scheduler to Redis", peer{settings.Namespace, nil, scheduler}, redis, "redis", true},
		{"Prometheus to Redis", prometheus, redis, "redis", false},
		{"function to Redis", peer{"default", nil, labels.Set{"app": "mst"}}, redis, "redis", false},
		{"another of Knative's to Redis", peer{"knative-serving", nil, labels.Set{"app": "autoscaler"}}, redis, "redis", false},
		{"activator by its label alone to Redis", peer{"default", nil, labels.Set{"app": "activator"}}, redis, "redis", false},

		{"activator to the predictor", activatorPod, predictor, "http", true},
		{"Prometheus to the predictor", prometheus, predictor, "http", true},
		{"Prometheus of an unlabelled namespace to the predictor", peer{"monitoring", nil, prometheus.podLabels}, predictor, "http", false},
		{"agent to the predictor", agentPod, predictor, "http", false},
		{"function to the predictor", peer{"default", nil, labels.Set{"app": "mst"}}, predictor, "http", false},
		{"activator by its label alone to the predictor", peer{"default", nil, labels.Set{"app": "activator"}}, predictor, "http", false},

		{"activator to the plain predictor", activatorPod, plain, "http", true},
		{"Prometheus to the plain predictor", prometheus, plain, "http", true},
		{"function to the plain predictor", peer{"default", nil, labels.Set{"app": "mst"}}, plain, "http", false},

		{"Prometheus to the scheduler", prometheus, scheduler, "https", true},
		{"function to the scheduler", peer{"default", nil, labels.Set{"app": "mst"}}, scheduler, "https", false},
	} {
		if got := admitted(t, policies, c.from, c.to, c.port); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A policy on a port that no container has, or on a label that no pod has, has no effect.
func TestNetworkPoliciesAreOnPodsAndPortsThatThereAre(t *testing.T) {
	for _, policy := range decode[networkingv1.NetworkPolicy](t, "NetworkPolicy") {
		selector := selects(t, &policy.Spec.PodSelector)
		i := slices.IndexFunc(pods(t), func(p pod) bool { return selector.Matches(podLabels(p)) })
		if i < 0 {
			t.Errorf("%s is on %s, which no pod has", policy.Name, selector)
			continue
		}
		container := pods(t)[i].Spec.Containers[0]
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return port.Port != nil && p.Name == port.Port.StrVal }) {
					t.Errorf("%s is on port %v, the pod has %v", policy.Name, port.Port, container.Ports)
				}
			}
		}
	}
}

// podLabels returns the labels of a pod of the manifests. KServe sets those of an InferenceService.
func podLabels(p pod) labels.Set {
	if p.of == "InferenceService" {
		return labels.Set{"serving.kserve.io/inferenceservice": p.name}
	}
	return p.Labels
}

// admitted reports whether policies of Libra's namespace let a pod in. As in networks that enforce
// them, those that select the pod add up, and without any, every pod is let in.
func admitted(t *testing.T, policies []networkingv1.NetworkPolicy, from peer, to labels.Set, port string) bool {
	t.Helper()
	selected := false
	for _, policy := range policies {
		if !selects(t, &policy.Spec.PodSelector).Matches(to) {
			continue
		}
		selected = true
		for _, rule := range policy.Spec.Ingress {
			ofPort := func(p networkingv1.NetworkPolicyPort) bool { return p.Port == nil || p.Port.StrVal == port }
			ofPeer := func(p networkingv1.NetworkPolicyPeer) bool { return p.IPBlock == nil && isPeer(t, p, from) }
			if (len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, ofPort)) && (len(rule.From) == 0 || slices.ContainsFunc(rule.From, ofPeer)) {
				return true
			}
		}
	}
	return !selected
}

func isPeer(t *testing.T, p networkingv1.NetworkPolicyPeer, from peer) bool {
	t.Helper()
	namespace := labels.Merge(from.namespaceLabels, labels.Set{corev1.LabelMetadataName: from.namespace})
	if p.NamespaceSelector == nil && from.namespace != settings.Namespace {
		return false
	}
	return (p.NamespaceSelector == nil || selects(t, p.NamespaceSelector).Matches(namespace)) &&
		(p.PodSelector == nil || selects(t, p.PodSelector).Matches(from.podLabels))
}

func selects(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector
}
