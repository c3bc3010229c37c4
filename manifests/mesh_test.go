package manifests

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"libra.dev/libra/pkg/settings"
)

const (
	istioAmbient = "components/istio-ambient"
	istioSidecar = "components/istio-sidecar"

	// hbone is the port of a pod that an ambient mesh sends to.
	hbone = 15008
)

// probes are the source addresses of kubelets' probes in an ambient mesh.
var probes = []networkingv1.NetworkPolicyPeer{
	{IPBlock: &networkingv1.IPBlock{CIDR: "169.254.7.127/32"}},
	{IPBlock: &networkingv1.IPBlock{CIDR: "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128"}},
}

// authorization has the fields of an AuthorizationPolicy that ours use.
type authorization struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector metav1.LabelSelector `json:"selector"`
		Action   string               `json:"action"`
		Rules    []struct {
			From []struct {
				Source struct {
					Principals []string `json:"principals"`
					Namespaces []string `json:"namespaces"`
				} `json:"source"`
			} `json:"from"`
			To []struct {
				Operation struct {
					Ports []string `json:"ports"`
				} `json:"operation"`
			} `json:"to"`
		} `json:"rules"`
	} `json:"spec"`
}

// authenticated has the fields of a PeerAuthentication that ours use.
type authenticated struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector metav1.LabelSelector `json:"selector"`
		MTLS     struct {
			Mode string `json:"mode"`
		} `json:"mtls"`
	} `json:"spec"`
}

// authorizes reports whether policies let an account reach a port. As in Istio, those that select the pod add up.
func authorizes(t *testing.T, policies []authorization, namespace, account string, to labels.Set, port string) bool {
	t.Helper()
	for _, p := range policies {
		if p.Spec.Action != "ALLOW" {
			t.Fatalf("%s has the action %q, which this test does not know", p.Name, p.Spec.Action)
		}
		if !selects(t, &p.Spec.Selector).Matches(to) {
			continue
		}
		for _, rule := range p.Spec.Rules {
			from, at := false, false
			for _, f := range rule.From {
				from = from || slices.Contains(f.Source.Principals, fmt.Sprintf("cluster.local/ns/%s/sa/%s", namespace, account)) ||
					slices.Contains(f.Source.Namespaces, namespace)
			}
			for _, o := range rule.To {
				at = at || slices.Contains(o.Operation.Ports, port)
			}
			if from && at {
				return true
			}
		}
	}
	return false
}

// The mesh lets in the same clients as the network, by name, and no others.
func TestTheMeshLetsInWhomTheNetworkLetsIn(t *testing.T) {
	network := decode[networkingv1.NetworkPolicy](t, "NetworkPolicy")
	mesh := rendered(t, istioAmbient)
	policies := decodeOf[authorization](t, mesh, "AuthorizationPolicy")
	strict := decodeOf[authenticated](t, mesh, "PeerAuthentication")
	accounts := map[string]string{}
	for _, p := range pods(t) {
		accounts[p.name] = p.Spec.ServiceAccountName
		if accounts[p.name] == "" {
			accounts[p.name] = "default"
		}
	}
	predictor := labels.Set{"serving.kserve.io/inferenceservice": "libra", "component": "predictor"}
	senders := map[string]struct {
		peer
		account string
	}{
		"the activator":       {activatorPod, "activator"},
		"the agent":           {agentPod, accounts["libra-agent"]},
		"the resizer":         {resizerPod, accounts["libra-resizer"]},
		"the scheduler":       {peer{settings.Namespace, nil, labels.Set{"app": "libra-scheduler"}}, accounts["libra-scheduler"]},
		"the predictor":       {peer{settings.Namespace, nil, predictor}, accounts["libra"]},
		"the plain predictor": {peer{settings.Namespace, nil, labels.Set{"app": "libra-predictor"}}, accounts["libra-predictor"]},
		"Prometheus":          {prometheus, "prometheus"},
		"a function":          {peer{"default", nil, labels.Set{"app": "mst"}}, "default"},
		"the autoscaler":      {peer{"knative-serving", nil, labels.Set{"app": "autoscaler"}}, "controller"},
		"one in its clothes":  {peer{"default", nil, labels.Set{"app": "activator"}}, "activator"},
	}
	let := 0
	for to, of := range map[string]struct {
		labels       labels.Set
		name, number string
	}{
		"Redis": {labels.Set{"app": "libra-redis"}, "redis", "6379"}, "the predictor": {predictor, "http", "8080"},
		"the plain predictor": {labels.Set{"app": "libra-predictor"}, "http", "8080"},
	} {
		if !slices.ContainsFunc(strict, func(p authenticated) bool {
			return p.Spec.MTLS.Mode == "STRICT" && selects(t, &p.Spec.Selector).Matches(of.labels)
		}) {
			t.Errorf("%s takes requests without mTLS, which have no account", to)
		}
		for from, s := range senders {
			want := admitted(t, network, s.peer, of.labels, of.name)
			if got := authorizes(t, policies, s.namespace, s.account, of.labels, of.number); got != want {
				t.Errorf("%s to %s: the mesh lets it in: %v, the network: %v", from, to, got, want)
			}
			if want {
				let++
			}
			if authorizes(t, policies, s.namespace, s.account, of.labels, "8081") {
				t.Errorf("%s to %s: the mesh lets it in at another port", from, to)
			}
		}
	}
	if let < 8 {
		t.Errorf("only %d are let in anywhere", let)
	}
}

// All traffic of an ambient mesh arrives at one port of the pod, and NetworkPolicies see that port.
func TestTheNetworkLetsTheAmbientMeshThrough(t *testing.T) {
	more := map[string]networkingv1.NetworkPolicy{}
	for _, p := range decodeOf[networkingv1.NetworkPolicy](t, rendered(t, istioAmbient), "NetworkPolicy") {
		more[p.Name] = p
	}
	for _, p := range decode[networkingv1.NetworkPolicy](t, "NetworkPolicy") {
		name := p.Name + "-ambient"
		m, ok := more[name]
		if !ok {
			t.Errorf("there is no policy %s, and the policy %s refuses what comes through the mesh", name, p.Name)
			continue
		}
		delete(more, name)
		want := p.Spec
		own := want.Ingress[0].Ports
		want.Ingress = []networkingv1.NetworkPolicyIngressRule{
			{From: p.Spec.Ingress[0].From, Ports: []networkingv1.NetworkPolicyPort{{Port: &intstr.IntOrString{IntVal: hbone}}}},
			{From: probes, Ports: own},
		}
		got, err := json.Marshal(m.Spec)
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Spec.Ingress) != 1 || string(got) != string(wanted) {
			t.Errorf("%s is\n%s\nwant\n%s", name, got, wanted)
		}
	}
	for name := range more {
		t.Errorf("%s is beside no policy", name)
	}
}

// Libra's pods have no sidecars, so an activator's must not encrypt what it sends them, even if a mesh rule says so.
func TestSidecarsSendToLibrasServicesAsTheyAre(t *testing.T) {
	type rule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Host          string `json:"host"`
			TrafficPolicy struct {
				TLS struct {
					Mode string `json:"mode"`
				} `json:"tls"`
			} `json:"trafficPolicy"`
		} `json:"spec"`
	}
	var hosts []string
	for _, r := range decodeOf[rule](t, rendered(t, istioSidecar), "DestinationRule") {
		if r.Spec.TrafficPolicy.TLS.Mode != "DISABLE" {
			t.Errorf("%s has the mode %q", r.Name, r.Spec.TrafficPolicy.TLS.Mode)
		}
		hosts = append(hosts, r.Spec.Host)
	}
	var want []string
	for _, o := range all(t) {
		if o.Kind == "Service" {
			want = append(want, o.Metadata.Name) // by which a rule of the same namespace knows it
		}
	}
	slices.Sort(hosts)
	slices.Sort(want)
	if !slices.Equal(hosts, want) {
		t.Errorf("there are rules for %v, and Services %v", hosts, want)
	}
}
