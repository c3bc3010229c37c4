package check

import (
	"context"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

// brokenBy is one thing that is not as it should be, and what check says about it.
type brokenBy struct {
	name string
	// object is what is changed, in the spec or in the status. Without a change it is created.
	object client.Object
	change func()
	status bool
	remove bool
	// cluster changes what is not an object.
	cluster func(*Cluster)
	// also are other things that are not as they should be.
	also []brokenBy
	// want are all findings that are not fine: severity, check and object.
	want []string
	// remedy is part of each remedy.
	remedy string
	// says is part of a message.
	says string
}

func quantities(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func at(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// edit is a change of an object that exists.
func edit[T client.Object](object T, change func(T)) (client.Object, func()) {
	return object, func() { change(object) }
}

func configured(name, key, value string) (client.Object, func()) {
	return edit(&corev1.ConfigMap{ObjectMeta: at(swap.Namespace, name)}, func(cm *corev1.ConfigMap) {
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		cm.Data[key] = value
	})
}

func ofActivator(change func(*appsv1.Deployment)) (client.Object, func()) {
	return edit(&appsv1.Deployment{ObjectMeta: at(swap.Namespace, swap.Name)}, change)
}

func ofRevision(change func(*servingv1.Revision)) (client.Object, func()) {
	return edit(&servingv1.Revision{ObjectMeta: at("shop", "cart-00001")}, change)
}

func ofNode(change func(*corev1.Node)) (client.Object, func()) {
	return edit(&corev1.Node{ObjectMeta: at("", "a")}, change)
}

// broken returns preconditions that do not hold, one at a time. Each call returns new
// ones, because tests change them.
func broken() []brokenBy {
	return []brokenBy{
		{
			name: "an API server before 1.35",
			cluster: func(c *Cluster) {
				c.version = func() (*version.Info, error) { return &version.Info{GitVersion: "v1.34.2-gke.7"}, nil }
			},
			want: []string{"error kubernetes-version cluster"}, remedy: "gcloud container clusters upgrade",
		},
		of("another Knative", ofKnativeAt("1.22.4"), "knative-v1.23.0/serving-core.yaml", "error knative-version deployment knative-serving/activator"),
		of("a Knative two minor versions behind", ofKnativeAt("1.21.4"), "# Upgrade Knative to 1.23, one minor version at a time: https://knative.dev/docs/install/upgrade/", "error knative-version deployment knative-serving/activator"),
		of("another Knative, which the operator keeps", pair(edit(&appsv1.Deployment{ObjectMeta: at(swap.Namespace, "controller")}, func(d *appsv1.Deployment) {
			d.Labels[swap.LabelOfVersion], d.OwnerReferences = "1.22.4", ofOperator
		})), "# Have the Knative operator upgrade Knative to 1.23, one minor version at a time: https://knative.dev/docs/install/upgrade/", "error knative-version deployment knative-serving/controller"),
		{
			name: "a part of Knative is gone", object: &appsv1.Deployment{ObjectMeta: at(swap.Namespace, "webhook")}, remove: true,
			want: []string{"error knative-version deployment knative-serving/webhook"}, remedy: applyKnative,
		},
		of("a Knative that Libra does not know yet", ofKnativeAt("1.24.0"), "set image deployment/activator", "error knative-version deployment knative-serving/activator"),
		of("another KServe", pair(edit(&appsv1.Deployment{ObjectMeta: at(kserveNamespace, kserveController)}, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Image = "kserve/kserve-controller:v0.19.0"
		})), "libra-predictor-plain.yaml", "warning kserve-version deployment kserve/kserve-controller-manager"),

		of("the Knative operator, which is not told of Libra's image", pair(ofActivator(func(d *appsv1.Deployment) {
			d.OwnerReferences = ofOperator
		})), "# Add this to the KnativeServing:\nspec:\n  registry:\n    override:\n      activator: example.com/libra-activator:1\n", "error activator-owner deployment knative-serving/activator"),
		of("Argo CD", pair(ofActivator(func(d *appsv1.Deployment) { d.Labels["argocd.argoproj.io/instance"] = "knative" })),
			"newName: example.com/libra-activator", "error activator-owner deployment knative-serving/activator"),
		of("Flux", pair(ofActivator(func(d *appsv1.Deployment) { d.Labels["kustomize.toolkit.fluxcd.io/name"] = "knative" })),
			"# Add this to the Kustomization of kustomize.toolkit.fluxcd.io:\nspec:\n  images:", "error activator-owner deployment knative-serving/activator"),
		of("Helm", pair(ofActivator(func(d *appsv1.Deployment) { d.Annotations["meta.helm.sh/release-name"] = "knative" })),
			"# after each helm upgrade of knative", "warning activator-owner deployment knative-serving/activator"),
		of("Knative's manifests applied over Libra's", pair(ofActivator(func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Image = stockRepository + ":v1.23.1"
		})), swapIn, "error activator-image deployment knative-serving/activator"),
		of("the stock image is not written down", pair(ofActivator(func(d *appsv1.Deployment) { delete(d.Annotations, swap.StockImageAnnotation) })),
			"annotate deployment activator libra.dev/stock-image=", "error activator-image deployment knative-serving/activator"),
		of("an image that is neither", pair(ofActivator(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "example.com/ours@sha256:1" })),
			"set image deployment/activator", "warning activator-image deployment knative-serving/activator"),
		brokenBy{
			name: "no activator is available", status: true, want: []string{"error activator-ready deployment knative-serving/activator"}, remedy: "kubectl -n knative-serving describe",
		}.changing(ofActivator(func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} })),
		{
			name: "the activator's rights are gone", object: &rbacv1.ClusterRole{ObjectMeta: at("", swap.LibraName)}, remove: true,
			want: []string{"error activator-rights clusterrole libra-activator"}, remedy: "kubectl apply --server-side -f libra-activator.yaml",
		},

		{
			name: "nothing that enforces NetworkPolicies", object: &appsv1.DaemonSet{ObjectMeta: at("kube-system", "calico-node")}, remove: true,
			want: []string{"warning network-policies cluster"}, remedy: "nc -z -w 3 redis.libra-system 6379",
		},
		of("a mesh by setting", pair(configured("config-network", "mesh-compatibility-mode", "enabled")),
			`'{"data":{"mesh-compatibility-mode":"auto"}}'`, "error mesh-addressability configmap knative-serving/config-network"),

		of("net-istio's way to single pods without net-istio", pair(edit(&corev1.ConfigMap{ObjectMeta: at(swap.Namespace, "config-network")}, func(cm *corev1.ConfigMap) {
			cm.Data = map[string]string{"ingress-class": gatewayAPI, "enable-mesh-pod-addressability": "true"}
		})), `'{"data":{"enable-mesh-pod-addressability":null}}'`, "error mesh-addressability configmap knative-serving/config-network").with(inMesh(swap.Namespace, "istio-injection", "enabled")),
		of("the mesh takes mTLS alone, with net-istio", inMesh("shop", "istio-injection", "enabled").changed(),
			`"enable-mesh-pod-addressability":"true"`, "error mesh-addressability namespace shop").with(brokenBy{object: mutual(istioNamespace, "")}),
		of("a namespace takes mTLS alone, without net-istio", inMesh("shop", "istio.io/rev", "stable").changed(),
			`kubectl apply -f - <<< '{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"namespace":"shop",`, "error mesh-addressability namespace shop").with(
			brokenBy{object: mutual("shop", "")}, brokenBy{}.changing(configured("config-network", "ingress-class", gatewayAPI))),
		of("NetworkPolicies refuse the ambient mesh", inMesh("libra-system", "istio.io/dataplane-mode", "ambient").changed(),
			applyAmbient, "error mesh-parts namespace libra-system"),
		of("Redis takes mTLS alone, and agents and activators have none", inMesh("libra-system", "istio.io/dataplane-mode", "ambient").changed(),
			"istio.io/dataplane-mode=ambient", "error mesh-parts namespace knative-serving", "error mesh-parts namespace libra-node").with(
			brokenBy{object: mutual("libra-system", redisApp)}, brokenBy{object: ambientPolicy()}),
		of("Libra's pods get sidecars", inMesh("libra-system", "istio-injection", "enabled").changed(),
			"kubectl label namespace libra-system libra-node istio-injection=disabled --overwrite", "warning mesh-parts namespace libra-system"),

		of("another architecture", pair(ofNode(func(n *corev1.Node) { n.Labels[corev1.LabelArchStable] = "s390x" })), "operator: In, values: [amd64, arm64]", "warning node-platform node a"),
		of("Fargate", pair(ofNode(func(n *corev1.Node) { n.Labels["eks.amazonaws.com/compute-type"] = "fargate" })), "eksctl create nodegroup", "warning node-kind node a"),
		{
			name: "Autopilot", want: []string{"warning node-kind node gk3-c", "warning kubelet-version node gk3-c"},
			object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gk3-c", Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}}},
		},
		of("OpenShift", pair(ofNode(func(n *corev1.Node) { n.Labels["node.openshift.io/os_id"] = "rhcos" })), "oc adm policy add-scc-to-user privileged", "warning node-kind node a"),
		brokenBy{
			name: "a kubelet before 1.35", status: true, want: []string{"error kubelet-version node a"}, remedy: "kubectl drain a",
		}.changing(ofNode(func(n *corev1.Node) { n.Status.NodeInfo.KubeletVersion = "v1.34.0" })),
		{
			name: "cgroup v1", cluster: answering("", "kubelet_cgroup_version 1\n"), want: []string{"warning node-cgroups nodes a,b"}, remedy: "systemd.unified_cgroup_hierarchy=1",
		},
		{
			name: "the static CPU manager", cluster: answering("static", "kubelet_cgroup_version 2\n"), want: []string{"warning node-cpu-manager nodes a,b"}, remedy: "cpuReserve",
		},

		brokenBy{
			name: "a node without its agent", status: true, want: []string{"warning agents node a"}, remedy: "spec.nodeName=a",
		}.changing(edit(&corev1.Pod{ObjectMeta: at("libra-node", "agent-a")}, func(pod *corev1.Pod) { pod.Status.Conditions[0].Status = corev1.ConditionFalse })),
		brokenBy{
			name: "the predictor is not available", status: true, want: []string{"error predictor-ready deployment libra-system/libra-predictor"}, remedy: "describe",
		}.changing(edit(&appsv1.Deployment{ObjectMeta: at("libra-system", predictorName)}, func(d *appsv1.Deployment) { d.Status = appsv1.DeploymentStatus{} })),
		of("the resizer is scaled away", pair(edit(&appsv1.Deployment{ObjectMeta: at("libra-system", settings.Resizer)}, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) })),
			"scale deployment libra-resizer --replicas=1", "error resizer-ready deployment libra-system/libra-resizer"),
		{
			name: "Redis is gone", object: &appsv1.Deployment{ObjectMeta: at("libra-system", redisName)}, remove: true,
			want: []string{"error redis-ready deployment libra-system/redis"}, remedy: applyLibra,
		},
		of("Redis evicts", pair(ofRedis(func(c *corev1.Container) { c.Args = replaced(c.Args, "noeviction", "allkeys-lru") })), applyLibra, "error redis-memory deployment libra-system/redis"),
		of("Redis may use more than its container", pair(ofRedis(func(c *corev1.Container) { c.Resources.Limits = quantities("1", "200Mi") })), "# Raise limits.memory to 320Mi: docs/sizing.md#more-memory-for-redis", "error redis-memory deployment libra-system/redis"),
		{
			name: "Redis is nearly full", object: redisUsing("200Mi"), want: []string{"warning redis-memory deployment libra-system/redis"}, remedy: "# Raise --maxmemory, and limits.memory to 1.5 times as much: docs/sizing.md#more-memory-for-redis",
		},

		{
			name: "an admission policy is not bound", object: &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: at("", "libra-resizer")}, remove: true,
			want: []string{"error admission-policies validatingadmissionpolicybinding libra-resizer"}, remedy: applyLibra,
		},
		{
			name: "no quota for critical pods", object: &corev1.ResourceQuota{ObjectMeta: at("libra-node", criticalQuota)}, remove: true,
			want: []string{"warning critical-pods resourcequota libra-node/critical-pods"}, remedy: applyLibra,
		},
		brokenBy{
			name: "a quota is full, which bounds pods, Secrets and storage", status: true, want: []string{"error critical-pods resourcequota libra-node/critical-pods"},
			remedy: "delete resourcequota critical-pods", says: "2 of 2 for pods",
		}.changing(edit(&corev1.ResourceQuota{ObjectMeta: at("libra-node", criticalQuota)}, func(q *corev1.ResourceQuota) {
			full := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2"), "count/secrets": resource.MustParse("2"), corev1.ResourceRequestsStorage: resource.MustParse("2")}
			q.Status.Hard, q.Status.Used = full, full
		})),
		{
			name: "a PodMonitor is gone", object: monitor("libra-node", settings.Agent), remove: true,
			want: []string{"warning monitors podmonitor libra-node/libra-agent"}, remedy: "kubectl apply --server-side -f libra-monitoring.yaml",
		},

		of("a label on the Service alone", pair(edit(&servingv1.Service{ObjectMeta: at("shop", "cart")}, func(s *servingv1.Service) {
			s.Labels, s.Spec.Template.Labels = map[string]string{"libra.dev/enabled": "true"}, nil
		})), `patch ksvc cart --type merge -p '{"spec":{"template":{"metadata":{"labels":{"libra.dev/enabled":"true"}}}}}'`, "warning function-label service shop/cart"),
		of("no limits", pair(ofRevision(func(r *servingv1.Revision) { r.Spec.Containers[0].Resources.Limits = nil })),
			`kubectl -n shop patch ksvc cart --type json -p '[{"op":"add","path":"/spec/template/spec/containers/0/resources","value":{"limits":{"cpu":"1","memory":"512Mi"},"requests":{"cpu":"100m","memory":"64Mi"}}}]'`,
			"error function-limits revision shop/cart-00001"),
		of("a limit of CPU alone", pair(ofRevision(func(r *servingv1.Revision) { delete(r.Spec.Containers[0].Resources.Limits, corev1.ResourceMemory) })),
			`"limits":{"cpu":"500m","memory":"512Mi"}`, "warning function-limits revision shop/cart-00001"),
		of("no bound on requests where the source is owners", pair(edit(&corev1.Namespace{ObjectMeta: at("", "shop")}, func(ns *corev1.Namespace) { ns.Labels["libra.dev/source"] = "owners" })),
			`'{"spec":{"template":{"spec":{"containerConcurrency":1}}}}'`, "error function-concurrency revision shop/cart-00001"),
		{
			name: "no bound on requests where a HarvestPolicy has the source owners", remedy: `{"containerConcurrency":1}`, want: []string{"error function-concurrency revision shop/cart-00001"},
			object: &v1alpha1.HarvestPolicy{ObjectMeta: at("shop", "default"), Spec: v1alpha1.HarvestPolicySpec{Source: "owners"}},
		},
		of("the activator leaves the path by annotation", pair(ofRevision(func(r *servingv1.Revision) { r.Annotations["autoscaling.knative.dev/target-burst-capacity"] = "200" })),
			`"autoscaling.knative.dev/target-burst-capacity":"-1"`, "warning function-in-path revision shop/cart-00001"),
		of("the activator leaves the path by default", pair(ofRevision(func(r *servingv1.Revision) { r.Annotations = nil })),
			`"autoscaling.knative.dev/target-burst-capacity":"-1"`, "warning function-in-path revision shop/cart-00001"),
		of("another autoscaler", pair(configured("config-autoscaler", "pod-autoscaler-class", "hpa.autoscaling.knative.dev")),
			`"autoscaling.knative.dev/class":"kpa.autoscaling.knative.dev"`, "warning function-in-path revision shop/cart-00001"),
		of("annotations that are refused", pair(ofRevision(func(r *servingv1.Revision) {
			r.Annotations["libra.dev/mode"], r.Annotations["libra.dev/max-cpu"] = "on", "much"
		})), ":null", "warning function-annotations revision shop/cart-00001", "warning function-annotations revision shop/cart-00001"),
		of("names that nobody reads", pair(ofRevision(func(r *servingv1.Revision) {
			r.Annotations["libra.dev/max_cpu"], r.Labels["libra.dev/mode"] = "1", "full"
		})), "labels.md", "warning function-annotations revision shop/cart-00001"),
		of("a placement that no policy has", pair(ofRevision(func(r *servingv1.Revision) { r.Labels["libra.dev/placement"] = "near-dta" })),
			`"labels":{"libra.dev/placement":null}`, "warning function-placement revision shop/cart-00001").with(brokenBy{object: &v1alpha1.PlacementPolicy{
			ObjectMeta: at("libra-system", "near-dta"), Spec: v1alpha1.PlacementPolicySpec{Blocks: []v1alpha1.Block{{Workers: []v1alpha1.Worker{{Node: "a"}}}}},
		}}),
		of("queue-proxy has limits by setting", pair(configured("config-deployment", "queue-sidecar-cpu-limit", "1")),
			`patch configmap config-deployment --type merge -p '{"data":{"queue-sidecar-cpu-limit":null}}'`, "error queue-proxy-limits configmap knative-serving/config-deployment"),
		{
			name: "a pod's queue-proxy has limits", object: proxied(), remedy: "resource-limit", says: "its queue-proxy has limits",
			want: []string{"error function-pod revision shop/cart-00001"},
		},
		{
			name: "a LimitRange gives queue-proxy limits", remedy: `patch limitrange shop --type json -p '[{"op":"remove","path":"/spec/limits/0/default"},{"op":"remove","path":"/spec/limits/0/max"}]'`,
			object: &corev1.LimitRange{ObjectMeta: at("shop", "shop"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: quantities("1", "1Gi")}}}},
			want:   []string{"error limit-range limitrange shop/shop"},
		},
		{
			name: "a LimitRange refuses ceilings", remedy: `'[{"op":"remove","path":"/spec/limits/0/max/cpu"}]'`,
			object: &corev1.LimitRange{ObjectMeta: at("shop", "shop"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypePod, Max: quantities("1", "1Gi")}}}},
			want:   []string{"warning limit-range limitrange shop/shop"},
		},
		{
			name: "a ResourceQuota counts limits", remedy: `kubectl -n shop patch resourcequota shop --type json -p '[{"op":"remove","path":"/spec/hard/limits.cpu"},{"op":"remove","path":"/spec/hard/limits.memory"}]'`,
			object: &corev1.ResourceQuota{ObjectMeta: at("shop", "shop"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
				corev1.ResourceLimitsCPU: resource.MustParse("4"), corev1.ResourceLimitsMemory: resource.MustParse("4Gi"), corev1.ResourceRequestsCPU: resource.MustParse("2"),
			}}},
			want: []string{"error resource-quota resourcequota shop/shop"},
		},
		of("a label that is no source", pair(ofNode(func(n *corev1.Node) { n.Labels["libra.dev/source"] = "owner" })), "kubectl label node a --overwrite libra.dev/source=node", "warning source-labels node a"),
	}
}

// changed is an object and a change of it.
type changed struct {
	object client.Object
	change func()
}

func pair(object client.Object, change func()) changed { return changed{object, change} }

func of(name string, c changed, remedy string, want ...string) brokenBy {
	return brokenBy{name: name, object: c.object, change: c.change, remedy: remedy, want: want}
}

func (b brokenBy) changing(object client.Object, change func()) brokenBy {
	b.object, b.change = object, change
	return b
}

// with adds other things that are not as they should be.
func (b brokenBy) with(also ...brokenBy) brokenBy {
	b.also = also
	return b
}

func (b brokenBy) changed() changed { return changed{b.object, b.change} }

const gatewayAPI = "gateway-api.ingress.networking.knative.dev"

// inMesh gives a namespace a label by which its pods are in a mesh.
func inMesh(namespace, label, value string) brokenBy {
	return brokenBy{}.changing(edit(&corev1.Namespace{ObjectMeta: at("", namespace)}, func(ns *corev1.Namespace) { ns.Labels[label] = value }))
}

// mutual has pods of a namespace, or those of an app there, accept only mTLS.
func mutual(namespace, app string) client.Object {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"mtls": map[string]any{"mode": "STRICT"}}}}
	if app != "" {
		u.Object["spec"].(map[string]any)["selector"] = map[string]any{"matchLabels": map[string]any{"app": app}}
	}
	u.SetGroupVersionKind(kindPeerAuthentication)
	u.SetNamespace(namespace)
	u.SetName("mutual")
	return u
}

// ambientPolicy lets an ambient mesh through to Redis.
func ambientPolicy() client.Object {
	return &networkingv1.NetworkPolicy{ObjectMeta: at("libra-system", "redis-ambient"), Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": redisApp}},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(hbonePort))}}}},
	}}
}

// ofOperator is what the Knative operator writes on everything that it keeps.
var ofOperator = []metav1.OwnerReference{{APIVersion: "operator.knative.dev/v1beta1", Kind: "KnativeServing", Name: "knative-serving", UID: "1"}}

func ofKnativeAt(v string) changed {
	return pair(ofActivator(func(d *appsv1.Deployment) { d.Labels[swap.LabelOfVersion] = v }))
}

func ofRedis(change func(*corev1.Container)) (client.Object, func()) {
	return edit(&appsv1.Deployment{ObjectMeta: at("libra-system", redisName)}, func(d *appsv1.Deployment) { change(&d.Spec.Template.Spec.Containers[0]) })
}

func replaced(all []string, old, by string) []string {
	return strings.Split(strings.ReplaceAll(strings.Join(all, "\n"), old, by), "\n")
}

func monitor(namespace, name string) client.Object {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kindPodMonitor)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

func redisUsing(memory string) client.Object {
	u := &unstructured.Unstructured{Object: map[string]any{"containers": []any{map[string]any{"name": "redis", "usage": map[string]any{"cpu": "1m", "memory": memory}}}}}
	u.SetGroupVersionKind(kindPodMetrics)
	u.SetNamespace("libra-system")
	u.SetName("redis-0")
	u.SetLabels(map[string]string{"app": redisApp})
	return u
}

// proxied is a second pod of the function, whose queue-proxy has limits.
func proxied() client.Object {
	pod := functionPodOf("cart-00001",
		corev1.ResourceRequirements{Limits: quantities("500m", "256Mi"), Requests: quantities("100m", "64Mi")},
		corev1.ResourceRequirements{Requests: quantities("100m", "64Mi"), Limits: quantities("100m", "64Mi")})
	pod.Name = "bounded"
	return pod
}

func answering(policy, metrics string) func(*Cluster) {
	return func(c *Cluster) {
		c.kubelet = func(_ context.Context, _, path string) ([]byte, error) {
			if path == "metrics" {
				return []byte("# TYPE kubelet_cgroup_version gauge\n" + metrics), nil
			}
			return []byte(`{"kubeletconfig": {"cgroupDriver": "systemd", "cpuManagerPolicy": "` + policy + `"}}`), nil
		}
	}
}
