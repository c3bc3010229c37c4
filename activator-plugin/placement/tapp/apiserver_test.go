package tapp_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	sigsyaml "sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/apiservertest"
)

const root = "../../.."

// plane is a control plane with nodes a and b, and an activator on a that follows the policies there with the
// rights that the manifests give it.
type plane struct {
	*testing.T
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	policies *tapp.Policies
}

func startPlane(t *testing.T) *plane {
	t.Helper()
	admin := apiservertest.Start(t, filepath.Join(root, "manifests/base/crds"))
	admin.QPS = -1
	p := &plane{T: t, kube: kubernetes.NewForConfigOrDie(admin), dynamic: dynamic.NewForConfigOrDie(admin)}
	for _, name := range []string{"shop", "knative-serving"} {
		_, err := p.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		p.do(err)
	}
	for name, disk := range map[string]string{"a": "ssd", "b": "hdd"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": disk, corev1.LabelTopologyZone: "zone-" + name}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err := p.kube.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		p.do(err)
	}
	_, err := p.kube.CoreV1().Pods("knative-serving").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "activator-0"},
		Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "activator", Image: "activator"}}},
	}, metav1.CreateOptions{})
	p.do(err)
	var role rbacv1.ClusterRole
	p.read("manifests/activator/rights/clusterrole.yaml", &role)
	_, err = p.kube.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{})
	p.do(err)
	var binding rbacv1.ClusterRoleBinding
	p.read("manifests/activator/rights/clusterrolebinding.yaml", &binding)
	_, err = p.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &binding, metav1.CreateOptions{})
	p.do(err)

	activator := rest.CopyConfig(admin)
	activator.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:knative-serving:activator", Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	p.follow(activator)
	return p
}

func (p *plane) follow(as *rest.Config) {
	p.Helper()
	kube := kubernetes.NewForConfigOrDie(as)
	broadcaster := record.NewBroadcaster(record.WithContext(context.Background()))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: kube.CoreV1().Events(corev1.NamespaceAll)})
	p.Cleanup(broadcaster.Shutdown)
	var err error
	p.policies, err = tapp.NewPolicies(tapp.PoliciesOptions{
		Kube: kube, Dynamic: dynamic.NewForConfigOrDie(as), Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(),
		MeterProvider: noop.NewMeterProvider(), Activator: types.NamespacedName{Namespace: "knative-serving", Name: "activator-0"},
		Events: broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: "libra-activator"}),
	})
	p.do(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.policies.Run(ctx)
	}()
	p.Cleanup(func() {
		cancel()
		<-done
	})
	waiting, stop := context.WithTimeout(p.Context(), time.Minute)
	defer stop()
	p.do(p.policies.WaitUntilRead(waiting))
}

func (p *plane) do(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *plane) read(path string, into any) {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	p.do(err)
	p.do(sigsyaml.UnmarshalStrict(text, into))
}

func (p *plane) resource(u *unstructured.Unstructured) dynamic.ResourceInterface {
	if u.GetKind() == "ClusterPlacementPolicy" {
		return p.dynamic.Resource(v1alpha1.GroupVersion.WithResource("clusterplacementpolicies"))
	}
	namespace := u.GetNamespace()
	if namespace == "" {
		namespace = "shop"
	}
	return p.dynamic.Resource(v1alpha1.GroupVersion.WithResource("placementpolicies")).Namespace(namespace)
}

// apply applies an object on the server as kubectl does, and refuses unknown fields.
func (p *plane) apply(u *unstructured.Unstructured) error {
	_, err := p.resource(u).Apply(p.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "test", Force: true})
	return err
}

func policy(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal([]byte("spec: "+spec), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("PlacementPolicy"))
	u.SetName(name)
	return u
}

// await polls until is returns true.
func (p *plane) await(what string, is func() bool) {
	p.Helper()
	if err := wait.PollUntilContextTimeout(p.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
		p.Fatalf("waiting until %s: %v", what, err)
	}
}

// goesTo returns which of a and b the requests with the tag go to.
func (p *plane) goesTo(tag string) string {
	of := p.policies.Of("shop", tag)
	if of == nil {
		return "any"
	}
	candidates := []placement.Candidate{placement.NewCandidate(&placement.Target{Dest: "10.0.0.1:8012", Node: "b"}, nil), placement.NewCandidate(&placement.Target{Dest: "10.0.0.2:8012", Node: "a"}, nil)}
	i, _ := of.Place(&placement.Query{Revision: types.NamespacedName{Namespace: "shop", Name: "cart"}}, candidates)
	if i < 0 {
		return "nowhere"
	}
	return candidates[i].Node
}

func (p *plane) status(u *unstructured.Unstructured) (status v1alpha1.PlacementPolicyStatus) {
	p.Helper()
	got, err := p.resource(u).Get(p.Context(), u.GetName(), metav1.GetOptions{})
	p.do(err)
	is, _ := got.Object["status"].(map[string]any)
	p.do(runtime.DefaultUnstructuredConverter.FromUnstructured(is, &status))
	return status
}

func onNode(node string) string {
	return "{followup: fail, blocks: [{workers: [{node: " + node + "}]}]}"
}

// This is one test, because starting an API server takes longer than all of it.
func TestOnAnAPIServer(t *testing.T) {
	p := startPlane(t)
	for name, test := range map[string]func(*plane){
		"the samples of the docs are taken":                (*plane).takesSamples,
		"what is wrong is refused":                         (*plane).refuses,
		"an edit that is refused leaves the last in force": (*plane).keepsTheLastGood,
		"zones are those of nodes":                         (*plane).knowsZones,
		"an edit is in force soon":                         (*plane).isQuick,
	} {
		t.Run(name, func(t *testing.T) {
			of := *p
			of.T = t
			test(&of)
		})
	}
}

func (p *plane) takesSamples() {
	page, err := os.ReadFile(filepath.Join(root, "docs/placement-policies.md"))
	if err != nil {
		p.Fatal(err)
	}
	taken := 0
	for _, block := range bytes.Split(page, []byte("```"))[1:] {
		text, ok := bytes.CutPrefix(block, []byte("yaml\n"))
		if !ok {
			continue
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			u := &unstructured.Unstructured{}
			if err := sigsyaml.Unmarshal(document, &u.Object); err != nil || u.GetAPIVersion() != v1alpha1.GroupVersion.String() {
				continue
			}
			u.SetNamespace("")
			if err := p.apply(u); err != nil {
				p.Errorf("%v:\n%s", err, document)
				continue
			}
			taken++
			p.await(u.GetName()+" is in force", func() bool { return meta.IsStatusConditionTrue(p.status(u).Conditions, v1alpha1.Accepted) })
			if err := p.resource(u).Delete(p.Context(), u.GetName(), metav1.DeleteOptions{}); err != nil {
				p.Error(err)
			}
		}
	}
	if taken < 3 {
		p.Errorf("%d samples were taken", taken)
	}
}

// The tests of manifests check that each rule refuses what it should. This checks that the API server applies
// the rules.
func (p *plane) refuses() {
	for name, tc := range map[string]struct{ policy, spec, want string }{
		"a schema":               {"gpu", "{blocks: [{workers: [{node: a}], strategy: best}]}", "spec.blocks[0].strategy: Unsupported value"},
		"a rule":                 {"gpu", "{blocks: [{workers: [{node: a, set: {}}]}]}", "want either node or set"},
		"a rule about the name":  {"default", "{followup: default, blocks: [{workers: [{node: a}]}]}", "must be fail"},
		"a rule about the total": {"gpu", "{blocks: [{workers: [" + strings.Repeat("{node: a},", 40) + "]}, {workers: [" + strings.Repeat("{node: a},", 25) + "]}]}", "want at most 64 in all"},
		"an unknown field":       {"gpu", "{blocks: [{workers: [{node: a}], affinity: much}]}", "affinity"},
	} {
		if err := p.apply(policy(p.T, tc.policy, tc.spec)); err == nil || !strings.Contains(err.Error(), tc.want) {
			p.Errorf("%s: got %v, want an error with %q", name, err, tc.want)
		}
	}
}

func (p *plane) keepsTheLastGood() {
	u := policy(p.T, "gpu", onNode("a"))
	p.do(p.apply(u))
	p.await("it is in force", func() bool { return p.goesTo("gpu") == "a" })
	// No rule of the API server finds a key that cannot be the key of a label.
	p.do(p.apply(policy(p.T, "gpu", "{blocks: [{workers: [{set: {matchLabels: {a b: disk}}}]}]}")))
	p.await("the status says that it is refused", func() bool { return meta.IsStatusConditionFalse(p.status(u).Conditions, v1alpha1.Accepted) })
	if got := p.goesTo("gpu"); got != "a" {
		p.Errorf("requests go to %s, want a as before", got)
	}
	status := p.status(u)
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted); c.ObservedGeneration != 2 || !strings.Contains(c.Message, "matchLabels[a b]") {
		p.Errorf("its condition is %+v", c)
	}
	if want := []v1alpha1.ActivatorStatus{{Name: "activator-0", ObservedGeneration: 2, CompiledGeneration: 1}}; !slices.Equal(status.Activators, want) {
		p.Errorf("its activators are %+v, want %+v", status.Activators, want)
	}
	p.await("there is an Event", func() bool {
		events, err := p.kube.CoreV1().Events("shop").List(p.Context(), metav1.ListOptions{})
		p.do(err)
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "Refused" && e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "PlacementPolicy" && e.InvolvedObject.Name == "gpu"
		})
	})
	p.do(p.apply(policy(p.T, "gpu", onNode("b"))))
	p.await("the next one is in force", func() bool { return p.goesTo("gpu") == "b" })
	p.await("the status says so", func() bool { return meta.IsStatusConditionTrue(p.status(u).Conditions, v1alpha1.Accepted) })
	p.do(p.resource(u).Delete(p.Context(), "gpu", metav1.DeleteOptions{}))
	p.await("it is deleted", func() bool { return p.goesTo("gpu") == "any" })
}

func (p *plane) knowsZones() {
	u := policy(p.T, "zones", "{followup: fail, blocks: [{controller: {zone: zone-b, topologyTolerance: none}, workers: [{node: b}]}, {controller: {zone: zone-a, topologyTolerance: none}, workers: [{node: a}]}]}")
	p.do(p.apply(u))
	p.await("the block of its zone is in force", func() bool { return p.goesTo("zones") == "a" })
	p.do(p.apply(policy(p.T, "zones", "{followup: fail, blocks: [{controller: {zone: zone-b, topologyTolerance: same}, workers: [{set: {}}]}]}")))
	p.await("the block of the other zone is in force", func() bool { return p.goesTo("zones") == "b" })
}

// The time is measured, not asserted. Meanwhile, no request is without a policy, and each has somewhere to go.
func (p *plane) isQuick() {
	apply := func(node string) { p.do(p.apply(policy(p.T, "quick", onNode(node)))) }
	apply("a")
	p.await("the policy is in force", func() bool { return p.goesTo("quick") == "a" })
	stop, placed := make(chan struct{}), 0
	var placing sync.WaitGroup
	placing.Go(func() {
		for ; ; placed++ {
			select {
			case <-stop:
				return
			default:
			}
			if node := p.goesTo("quick"); node != "a" && node != "b" {
				p.Errorf("while it is edited a request goes to %s", node)
				return
			}
			goruntime.Gosched()
		}
	})
	var took []time.Duration
	for i := range 100 {
		node := []string{"b", "a"}[i%2]
		began := time.Now()
		apply(node)
		p.await("the edit is in force", func() bool { return p.goesTo("quick") == node })
		took = append(took, time.Since(began))
	}
	close(stop)
	placing.Wait()
	slices.Sort(took)
	p.Logf("of %d edits, while %d requests were placed, the median was in force after %v and the last after %v, from when it was sent",
		len(took), placed, took[len(took)/2], took[len(took)-1])
}

// Without the definitions, there is nothing to wait for.
func TestOnAnAPIServerWithoutDefinitions(t *testing.T) {
	config := apiservertest.Start(t)
	p := &plane{T: t, kube: kubernetes.NewForConfigOrDie(config), dynamic: dynamic.NewForConfigOrDie(config)}
	p.follow(config)
	if got := p.goesTo(""); got != "any" {
		t.Errorf("requests go to %s, want any", got)
	}
	_, err := p.dynamic.Resource(schema.GroupVersionResource(v1alpha1.GroupVersion.WithResource("placementpolicies"))).Namespace("shop").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsNotFound(err) {
		t.Error("the definitions are there:", err)
	}
}
