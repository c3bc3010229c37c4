package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/kubectl/swap"
	"libra.dev/libra/pkg/settings"
)

const root = "../../.."

// plane is an API server that has all of Libra that check looks at, and a function.
type plane struct {
	*testing.T
	config *rest.Config
	client client.Client
}

// definition returns the definition of somebody else's kind, with any fields.
func definition(kind schema.GroupVersionKind, plural string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + kind.Group, Annotations: map[string]string{
			apiextensionsv1.KubeAPIApprovedAnnotation: "unapproved, for a test",
		}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind.Kind, ListKind: kind.Kind + "List", Plural: plural, Singular: strings.ToLower(kind.Kind)},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: kind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: ptr.To(true),
				}},
			}},
		},
	}
}

func startPlane(t *testing.T) *plane {
	config := apiservertest.Start(t, filepath.Join(root, "manifests/base/crds"))
	config.QPS = -1
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		definition(kindRevision, "revisions"), definition(kindRevision.GroupVersion().WithKind("Service"), "services"),
		definition(kindInferenceService, "inferenceservices"),
		definition(kindPodMonitor, "podmonitors"), definition(kindPrometheusRule, "prometheusrules"), definition(kindPodMetrics, "pods"), definition(kindPeerAuthentication, "peerauthentications"),
	}}); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t, config, c}
	for _, name := range []string{swap.Namespace, kserveNamespace, istioNamespace, "libra-system", "libra-node", "shop"} {
		p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, folder := range []string{"base/settings", "base/settings/policy", "base/resizer", "base/resizer/policy", "base/redis", "base/agent", "activator/rights", "check"} {
		p.apply(folder)
	}
	p.knative()
	p.nodes()
	p.monitored()
	p.create(deployment("libra-system", predictorName, "predictor", "libra-predictor:1"))
	p.function()
	for _, name := range []string{settings.Resizer, redisName, predictorName} {
		p.whole("libra-system", name)
	}
	return p
}

func (p *plane) do(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *plane) create(o client.Object) {
	p.Helper()
	p.do(p.client.Create(p.Context(), o))
}

// apply creates the objects of one of our kustomizations, except those that exist.
func (p *plane) apply(folder string) {
	p.Helper()
	dir := filepath.Join(root, "manifests", folder)
	var k struct{ Namespace string }
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	p.do(err)
	p.do(yaml.Unmarshal(text, &k))
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	p.do(err)
	// A namespace comes before the objects in it.
	slices.SortStableFunc(files, func(a, b string) int {
		return strings.Compare(fmt.Sprint(filepath.Base(a) != "namespace.yaml"), fmt.Sprint(filepath.Base(b) != "namespace.yaml"))
	})
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		o := &unstructured.Unstructured{}
		text, err := os.ReadFile(file)
		p.do(err)
		p.do(yaml.Unmarshal(text, o))
		mapping, err := p.client.RESTMapper().RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
		p.do(err)
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace && o.GetNamespace() == "" {
			o.SetNamespace(k.Namespace)
		}
		p.do(client.IgnoreAlreadyExists(p.client.Create(p.Context(), o)))
	}
}

func deployment(namespace, name, container, image string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: container, Image: image}},
			}},
		},
	}
}

// whole makes all pods of a Deployment available.
func (p *plane) whole(namespace, name string) {
	p.Helper()
	d := &appsv1.Deployment{}
	p.do(p.client.Get(p.Context(), client.ObjectKey{Namespace: namespace, Name: name}, d))
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{Replicas: n, ReadyReplicas: n, AvailableReplicas: n}
	p.do(p.client.Status().Update(p.Context(), d))
}

func (p *plane) knative() {
	for _, name := range servingDeployments {
		d := deployment(swap.Namespace, name, name, "example.com/"+name+":1")
		d.Labels[swap.LabelOfVersion] = "1.23.1"
		if name == swap.Name {
			d.Spec.Template.Spec.Containers[0].Image = "example.com/libra-activator:1"
			d.Annotations[swap.StockImageAnnotation] = stockRepository + ":v1.23.1"
		}
		p.create(d)
		p.whole(swap.Namespace, name)
	}
	d := deployment(kserveNamespace, kserveController, "manager", "kserve/kserve-controller:v0.20.0")
	p.create(d)
	for name, data := range map[string]map[string]string{
		"config-network": {}, "config-deployment": {}, "config-features": {}, "config-autoscaler": {},
	} {
		p.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: swap.Namespace, Name: name}, Data: data})
	}
}

// nodes creates a and b, with an agent each, and something that enforces NetworkPolicies.
func (p *plane) nodes() {
	ds := &appsv1.DaemonSet{}
	p.do(p.client.Get(p.Context(), client.ObjectKey{Namespace: "libra-node", Name: settings.Agent}, ds))
	for _, name := range []string{"a", "b"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}}}
		p.create(n)
		n.Status.NodeInfo.KubeletVersion = "v1.35.4"
		p.do(p.client.Status().Update(p.Context(), n))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "libra-node", Name: "agent-" + name, Labels: ds.Spec.Template.Labels}, Spec: corev1.PodSpec{
			NodeName: name, Containers: []corev1.Container{{Name: "agent", Image: "libra-agent"}},
		}}
		p.create(pod)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		p.do(p.client.Status().Update(p.Context(), pod))
	}
	labels := map[string]string{"app": "calico-node"}
	p.create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "calico-node"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "calico", Image: "calico"}}}},
	}})
}

func (p *plane) monitored() {
	make := func(kind schema.GroupVersionKind, namespace, name string) {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		u.SetNamespace(namespace)
		u.SetName(name)
		p.create(u)
	}
	make(kindPodMonitor, swap.Namespace, swap.LibraName)
	make(kindPodMonitor, "libra-node", settings.Agent)
	make(kindPodMonitor, "libra-system", predictorName)
	make(kindPodMonitor, "libra-system", settings.Resizer)
	make(kindPrometheusRule, "libra-system", "libra")
	p.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "libra-system", Name: dashboardName}})
}

// function creates the Service cart in shop, with a revision and a pod.
func (p *plane) function() {
	labels := map[string]string{"libra.dev/enabled": "true", "serving.knative.dev/service": "cart", "serving.knative.dev/routingState": "active"}
	spec := servingv1.RevisionSpec{ContainerConcurrency: ptr.To[int64](0)}
	spec.Containers = []corev1.Container{{Name: "user-container", Image: "cart", Resources: corev1.ResourceRequirements{
		Requests: quantities("100m", "64Mi"), Limits: quantities("500m", "256Mi"),
	}}}
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-00001", Labels: labels,
		Annotations: map[string]string{"autoscaling.knative.dev/target-burst-capacity": "-1"}}, Spec: spec}
	p.create(rev)
	p.create(&servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}, Spec: servingv1.ServiceSpec{
		ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"libra.dev/enabled": "true"}}, Spec: spec,
		}},
	}})
	p.create(functionPodOf("cart-00001", spec.Containers[0].Resources, corev1.ResourceRequirements{}))
}

func functionPodOf(revision string, user, proxy corev1.ResourceRequirements) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: revision + "-0",
		Labels: map[string]string{"libra.dev/enabled": "true", "serving.knative.dev/revision": revision}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "user-container", Image: "cart", Resources: user}, {Name: "queue-proxy", Image: "queue", Resources: proxy},
		}}}
}

// look returns what check finds with the rights of as.
func (p *plane) look(as *rest.Config, change func(*Cluster)) []Finding {
	p.Helper()
	c, err := NewCluster(as, "")
	p.do(err)
	change(c)
	return Runner{Clock: clock.RealClock{}, Timeout: time.Minute, Progress: func(string) {}}.Run(p.Context(), c, Registry())
}

// bad returns the findings that are not fine, without their messages.
func bad(findings []Finding) (bad []string) {
	for _, f := range findings {
		if f.Severity != OK {
			bad = append(bad, fmt.Sprintf("%s %s %s", f.Severity, f.Check, f.Object))
		}
	}
	return bad
}

// kubelets answers as on a node with cgroup v2.
func kubelets(_ context.Context, _, path string) ([]byte, error) {
	switch path {
	case "configz":
		return []byte(`{"kubeletconfig": {"cgroupDriver": "systemd", "cpuManagerPolicy": "none"}}`), nil
	case "metrics":
		return []byte("# TYPE kubelet_cgroup_version gauge\nkubelet_cgroup_version 2\n"), nil
	}
	return nil, errors.New("no such path")
}

func withKubelets(c *Cluster) { c.kubelet = kubelets }

// It is one test, because starting an API server takes longer than all the rest.
func TestOnAnAPIServer(t *testing.T) {
	p := startPlane(t)
	t.Run("of what is whole nothing is wrong", func(t *testing.T) {
		p := &plane{t, p.config, p.client}
		for _, f := range p.look(p.config, withKubelets) {
			if f.Severity != OK {
				t.Errorf("%+v", f)
			}
		}
	})
	for _, b := range broken() {
		t.Run(b.name, func(t *testing.T) { (&plane{t, p.config, p.client}).breaks(b) })
	}
	t.Run("the Job's rights are enough", func(t *testing.T) {
		p := &plane{t, p.config, p.client}
		findings := p.look(impersonate(p.config, "system:serviceaccount:libra-check:libra-check", "system:serviceaccounts"), func(*Cluster) {})
		if got, want := bad(findings), []string{"warning node-cgroups nodes", "warning node-cpu-manager nodes"}; !slices.Equal(got, want) {
			t.Errorf("not fine are %q, want %q: %+v", got, want, findings)
		}
	})
	t.Run("without rights nothing is known, and nothing is said to be wrong", func(t *testing.T) {
		p := &plane{t, p.config, p.client}
		for _, f := range p.look(impersonate(p.config, "nobody"), func(*Cluster) {}) {
			switch {
			case f.Severity == Error:
				t.Errorf("%+v", f)
			case f.Severity == Warning && (!strings.Contains(f.Message, "not known") || f.Remedy != grant && f.Object.Kind != "nodes"):
				t.Errorf("%+v, want it not known, with what grants the right", f)
			}
		}
	})
	t.Run("before an install its parts are not looked at", func(t *testing.T) {
		p := &plane{t, p.config, p.client}
		parts := map[string]bool{}
		for _, c := range Registry() {
			parts[c.ID] = c.installed
		}
		for _, f := range p.look(p.config, func(c *Cluster) { withKubelets(c); c.Installed = false }) {
			if parts[f.Check] {
				t.Errorf("%+v", f)
			}
		}
	})
}

func impersonate(config *rest.Config, user string, groups ...string) *rest.Config {
	as := rest.CopyConfig(config)
	as.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return as
}

// breaks makes one thing not as it should be, and then restores it.
func (p *plane) breaks(b brokenBy) {
	p.Helper()
	undo := p.breakIt(b)
	for _, also := range b.also {
		first, second := undo, p.breakIt(also)
		undo = func() { second(); first() }
	}
	findings := p.look(p.config, func(c *Cluster) {
		withKubelets(c)
		if b.cluster != nil {
			b.cluster(c)
		}
	})
	undo()
	if got := bad(findings); !slices.Equal(got, b.want) {
		p.Errorf("not fine are %q, want %q", got, b.want)
	}
	if !slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Message, b.says) }) {
		p.Errorf("none of %+v says %q", findings, b.says)
	}
	for _, f := range findings {
		if f.Severity != OK && (f.Remedy == "" || len(b.want) == 1 && !strings.Contains(f.Remedy, b.remedy)) {
			p.Errorf("the remedy of %q is %q, want one with %q", f.Message, f.Remedy, b.remedy)
		}
	}
}

func (p *plane) breakIt(b brokenBy) (undo func()) {
	p.Helper()
	if b.object == nil {
		return func() {}
	}
	key := client.ObjectKeyFromObject(b.object)
	if b.change == nil && !b.remove {
		p.create(b.object)
		return func() { p.do(p.client.Delete(p.Context(), b.object, client.GracePeriodSeconds(0))) }
	}
	p.do(p.client.Get(p.Context(), key, b.object))
	was := b.object.DeepCopyObject().(client.Object)
	if b.remove {
		p.do(p.client.Delete(p.Context(), b.object))
		return func() {
			status := was.DeepCopyObject().(client.Object)
			was.SetResourceVersion("")
			was.SetUID("")
			p.create(was)
			status.SetResourceVersion(was.GetResourceVersion())
			status.SetUID(was.GetUID())
			if d, ok := status.(*appsv1.Deployment); ok {
				p.do(p.client.Status().Update(p.Context(), d))
			}
		}
	}
	b.change()
	update := func(o client.Object) {
		p.Helper()
		if b.status {
			p.do(p.client.Status().Update(p.Context(), o))
			return
		}
		p.do(p.client.Update(p.Context(), o))
	}
	update(b.object)
	return func() {
		was.SetResourceVersion(b.object.GetResourceVersion())
		update(was)
	}
}
