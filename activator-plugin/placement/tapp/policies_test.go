package tapp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// followed is a cluster whose policies are followed. The tests run in a bubble, so everything that was done has
// arrived when all goroutines in it wait.
type followed struct {
	*testing.T
	kube     *fake.Clientset
	dynamic  *dynamicfake.FakeDynamicClient
	policies *Policies
	reader   *sdkmetric.ManualReader
	logs     *observer.ObservedLogs
	events   *record.FakeRecorder
}

func newCluster(t *testing.T, policies ...runtime.Object) *followed {
	t.Helper()
	f := &followed{T: t, kube: fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "activator-0"}, Spec: corev1.PodSpec{NodeName: "a"}},
		readyNode("a", "disk", "ssd"), readyNode("b", "disk", "hdd"),
	)}
	f.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		namespaced: "PlacementPolicyList", ofCluster: "ClusterPlacementPolicyList",
	}, policies...)
	return f
}

// follow runs until the test ends.
func (f *followed) follow() *followed {
	f.Helper()
	var core zapcore.Core
	core, f.logs = observer.New(zap.InfoLevel)
	f.reader = sdkmetric.NewManualReader()
	f.events = record.NewFakeRecorder(100)
	var err error
	f.policies, err = NewPolicies(PoliciesOptions{
		Kube: f.kube, Dynamic: f.dynamic, Clock: clock.RealClock{}, Logger: zap.New(core).Sugar(),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(f.reader)), Events: f.events,
		Activator: types.NamespacedName{Namespace: "knative-serving", Name: "activator-0"},
		Platform:  func(*placement.Query, []placement.Candidate) int { return 0 },
	})
	if err != nil {
		f.Fatal("NewPolicies() =", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.policies.Run(ctx)
	}()
	f.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

// settle waits until everything that is under way has arrived.
func (f *followed) settle() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

func readyNode(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// policyObject returns a policy as the API server has it. Its spec is in YAML.
func policyObject(namespace, name string, generation int64, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(v1alpha1.GroupVersion.String())
	u.SetKind("PlacementPolicy")
	if namespace == "" {
		u.SetKind("ClusterPlacementPolicy")
	}
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetUID(types.UID(namespace + "/" + name))
	u.SetGeneration(generation)
	text, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		panic(err)
	}
	var into any
	if err := json.Unmarshal(text, &into); err != nil {
		panic(err)
	}
	u.Object["spec"] = into
	return u
}

// onNode returns a spec that names one node.
func onNode(node string) string {
	return "{followup: fail, blocks: [{workers: [{node: " + node + "}]}]}"
}

func (f *followed) resource(u *unstructured.Unstructured) dynamic.ResourceInterface {
	if u.GetNamespace() == "" {
		return f.dynamic.Resource(ofCluster)
	}
	return f.dynamic.Resource(namespaced).Namespace(u.GetNamespace())
}

func (f *followed) apply(u *unstructured.Unstructured) {
	f.Helper()
	is, err := f.resource(u).Get(context.Background(), u.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = f.resource(u).Create(context.Background(), u, metav1.CreateOptions{})
	} else if err == nil {
		// The API server keeps the status.
		if status, ok := is.Object["status"]; ok {
			u.Object["status"] = status
		}
		_, err = f.resource(u).Update(context.Background(), u, metav1.UpdateOptions{})
	}
	f.do(err)
	f.settle()
}

func (f *followed) status(u *unstructured.Unstructured) (status v1alpha1.PlacementPolicyStatus) {
	f.Helper()
	got, err := f.resource(u).Get(context.Background(), u.GetName(), metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	is, _ := got.Object["status"].(map[string]any)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(is, &status); err != nil {
		f.Fatal(err)
	}
	return status
}

// goesTo returns which of a and b the requests of the namespace and tag go to. It returns both if no policy
// decides.
func (f *followed) goesTo(namespace, tag string) string {
	f.Helper()
	p := f.policies.Of(namespace, tag)
	if p == nil {
		return "any"
	}
	q := &placement.Query{Revision: types.NamespacedName{Namespace: namespace, Name: "cart-00001"}}
	candidates := []placement.Candidate{placement.NewCandidate(&placement.Target{Dest: "10.0.0.1:8012", Node: "b"}, nil), placement.NewCandidate(&placement.Target{Dest: "10.0.0.2:8012", Node: "a"}, nil)}
	i, block := p.Place(q, candidates)
	if i < 0 {
		return "nowhere"
	}
	return fmt.Sprintf("%s by %d", candidates[i].Node, block)
}

func (f *followed) expect(namespace, tag, want string) {
	f.Helper()
	if got := f.goesTo(namespace, tag); got != want {
		f.Errorf("requests of %s with the tag %q go to %s, want %s", namespace, tag, got, want)
	}
}

// expectEvent expects that the next Event begins with want.
func (f *followed) expectEvent(want string) {
	f.Helper()
	select {
	case got := <-f.events.Events:
		if !strings.HasPrefix(got, want) {
			f.Errorf("the Event is %q, want %q", got, want)
		}
	default:
		f.Errorf("there is no Event, want %q", want)
	}
}

// metric returns the sum of what is exported with the attributes.
func (f *followed) metric(name string, attrs ...attribute.KeyValue) (sum int64) {
	f.Helper()
	var data metricdata.ResourceMetrics
	if err := f.reader.Collect(context.Background(), &data); err != nil {
		f.Fatal(err)
	}
	var points []metricdata.DataPoint[int64]
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch of := m.Data.(type) {
			case metricdata.Sum[int64]:
				if m.Name == name {
					points = append(points, of.DataPoints...)
				}
			case metricdata.Gauge[int64]:
				if m.Name == name {
					points = append(points, of.DataPoints...)
				}
			}
		}
	}
	for _, p := range points {
		if !slices.ContainsFunc(attrs, func(a attribute.KeyValue) bool {
			value, ok := p.Attributes.Value(a.Key)
			return !ok || value != a.Value
		}) {
			sum += p.Value
		}
	}
	return sum
}

func TestWhichPolicyIsWhose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t,
			policyObject("shop", "gpu", 1, onNode("a")), policyObject("shop", "default", 1, onNode("b")),
			policyObject("", "gpu", 1, onNode("b")), policyObject("", "far", 1, onNode("a")),
		).follow()
		f.settle()
		f.expect("shop", "gpu", "a by 0")     // the namespace's policy comes before the cluster's
		f.expect("bank", "gpu", "b by 0")     // without one, the cluster's applies
		f.expect("shop", "far", "a by 0")     // the cluster's applies in all namespaces
		f.expect("shop", "", "b by 0")        // no tag means default
		f.expect("shop", "default", "b by 0") // the tag may also be default
		f.expect("shop", "none", "b by 0")    // an unknown tag means default, too
		f.expect("bank", "", "any")           // no policy applies
		f.apply(policyObject("", "default", 1, onNode("a")))
		f.expect("bank", "", "a by 0")
		f.expect("shop", "", "b by 0")
	})
}

func TestWhatFollows(t *testing.T) {
	nowhere := "{blocks: [{workers: [{node: gone}]}]}"
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, nowhere), policyObject("", "other", 1, nowhere)).follow()
		f.settle()
		f.expect("shop", "gpu", "b by -1") // the platform's choice
		f.apply(policyObject("", "default", 1, onNode("a")))
		f.expect("shop", "gpu", "a by -1")
		f.expect("shop", "other", "a by -1")
		f.apply(policyObject("shop", "default", 1, onNode("b")))
		f.expect("shop", "gpu", "b by -1")
		f.expect("shop", "other", "b by -1") // the default of the request's namespace, not of the policy's
		f.expect("bank", "other", "a by -1")
		// The followup of the default is always fail.
		f.apply(policyObject("shop", "default", 2, nowhere))
		f.expect("shop", "gpu", "nowhere")
		f.expect("shop", "", "nowhere")
		f.apply(policyObject("shop", "gpu", 2, "{followup: fail, blocks: [{workers: [{node: gone}]}]}"))
		f.expect("shop", "gpu", "nowhere")
		ofGPU := attribute.String("policy", "gpu")
		if got := f.metric("libra.placement.policy.decisions", ofGPU, attribute.String("outcome", "default")); got != 4 {
			t.Errorf("%d decisions were left to the default, want 4", got)
		}
		if got := f.metric("libra.placement.policy.decisions", ofGPU, attribute.String("outcome", "refused")); got != 1 {
			t.Errorf("%d decisions were to refuse, want 1", got)
		}
	})
}

func TestAnEditThatIsRefusedLeavesTheLastInForce(t *testing.T) {
	bad := "{blocks: [{workers: [{set: {matchLabels: {disk: a b}}}]}]}"
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, onNode("a"))).follow()
		f.settle()
		p := policyObject("shop", "gpu", 2, bad)
		f.apply(p)
		f.expect("shop", "gpu", "a by 0")
		status := f.status(p)
		c := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonRefused || c.ObservedGeneration != 2 {
			t.Fatalf("its condition is %+v, want that generation 2 is refused", c)
		}
		for _, want := range []string{"spec.blocks[0].workers[0].set.matchLabels[disk]", `"a b"`, "want a value of a node label", "Generation 1 stays in force."} {
			if !strings.Contains(c.Message, want) {
				t.Errorf("its message is %q, want %q in it", c.Message, want)
			}
		}
		if diff := cmp.Diff([]v1alpha1.ActivatorStatus{{Name: "activator-0", ObservedGeneration: 2, CompiledGeneration: 1}}, status.Activators); diff != "" {
			t.Error("its activators (-want, +got):\n" + diff)
		}
		f.expectEvent("Warning Refused spec.blocks[0]")
		if got := f.metric("libra.placement.policy.edits.refused", attribute.String("policy", "gpu")); got != 1 {
			t.Errorf("%d edits are counted as refused, want 1", got)
		}
		if got := f.metric("libra.placement.policies", attribute.String("state", "last_good")); got != 1 {
			t.Errorf("%d policies go by what was good, want 1", got)
		}
		if got := f.logs.FilterMessageSnippet("Refused a placement policy").Len(); got != 1 {
			t.Errorf("it was logged %d times, want once", got)
		}

		// It still follows the nodes.
		f.do(f.kube.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
		f.settle()
		f.expect("shop", "gpu", "a by 0") // nothing is known about an absent node, and its pod is ready

		f.apply(policyObject("shop", "gpu", 3, onNode("b")))
		f.expect("shop", "gpu", "b by 0")
		if status := f.status(p); !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Accepted) || status.Activators[0].CompiledGeneration != 3 {
			t.Errorf("its status is %+v, want that generation 3 is in force", status)
		}
		f.expectEvent("Warning BlocksMatchNoNode")
		f.expectEvent("Normal InForce Generation 3 is in force.")
	})
}

func (f *followed) do(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// All activators say the same of a refused policy, or each would write over the other's word.
func TestWhatActivatorsSayOfARefusedPolicy(t *testing.T) {
	for want, compiled := range map[string][]int64{
		"No generation of this policy is in force": {0, 0},
		"Generation 2 stays in force.":             {2, 2},
		"different generations in force, [0 2]":    {0, 2},
	} {
		activators := make([]v1alpha1.ActivatorStatus, len(compiled))
		for i := range compiled {
			activators[i].CompiledGeneration = compiled[i]
		}
		if got := inForce(activators); !strings.Contains(got, want) {
			t.Errorf("of %v: %q, want %q in it", compiled, got, want)
		}
	}
}

// A policy that was never accepted has nothing in force, and its functions get the default.
func TestAPolicyThatIsRefusedFromTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, "{blocks: [{workers: [{node: a, set: {}}]}]}"), policyObject("shop", "default", 1, onNode("b"))).follow()
		f.settle()
		f.expect("shop", "gpu", "b by 0")
		status := f.status(policyObject("shop", "gpu", 1, "{}"))
		if c := meta.FindStatusCondition(status.Conditions, v1alpha1.Accepted); c == nil || !strings.Contains(c.Message, "No generation of this policy is in force") {
			t.Errorf("its condition is %+v", c)
		}
		// Only a later activator knows this field.
		f.apply(policyObject("shop", "later", 1, "{blocks: [{workers: [{node: a}], affinity: much}]}"))
		f.expect("shop", "later", "b by 0")
		if c := meta.FindStatusCondition(f.status(policyObject("shop", "later", 1, "{}")).Conditions, v1alpha1.Accepted); c == nil || !strings.Contains(c.Message, "blocks[0].affinity") {
			t.Errorf("its condition is %+v, want the field in it", c)
		}
	})
}

func TestADeletedPolicyIsNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policyObject("shop", "gpu", 1, onNode("a"))
		f := newCluster(t, p).follow()
		f.settle()
		f.expect("shop", "gpu", "a by 0")
		f.do(f.resource(p).Delete(t.Context(), "gpu", metav1.DeleteOptions{}))
		f.settle()
		f.expect("shop", "gpu", "any")
		// A policy recreated with the same name is another policy, and has no last good version.
		again := policyObject("shop", "gpu", 1, "{blocks: []}")
		again.SetUID("another")
		f.apply(again)
		f.expect("shop", "gpu", "any")
	})
}

func TestPoliciesFollowTheNodes(t *testing.T) {
	const ssd = "{followup: fail, blocks: [{workers: [{set: {matchLabels: {disk: ssd}}}]}]}"
	synctest.Test(t, func(t *testing.T) {
		p := policyObject("shop", "gpu", 1, ssd)
		f := newCluster(t, p).follow()
		f.settle()
		f.expect("shop", "gpu", "a by 0")
		update := func(n *corev1.Node) {
			_, err := f.kube.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
			f.do(err)
			f.settle()
		}
		update(readyNode("b", "disk", "ssd"))
		notReady := readyNode("a", "disk", "ssd")
		notReady.Status.Conditions[0].Status = corev1.ConditionUnknown
		update(notReady)
		f.expect("shop", "gpu", "b by 0")
		update(readyNode("b", "disk", "hdd"))
		f.expect("shop", "gpu", "nowhere")
		update(readyNode("a", "disk", "hdd"))
		if got := f.status(p).UnmatchedBlocks; !slices.Equal(got, []int32{0}) {
			t.Errorf("blocks %v match no node, want [0]", got)
		}
		update(readyNode("a", "disk", "ssd"))
		f.expect("shop", "gpu", "a by 0")
		if got := f.status(p).UnmatchedBlocks; len(got) != 0 {
			t.Errorf("blocks %v match no node, want none", got)
		}
	})
}

// The activator is in its node's zone.
func TestAnActivatorKnowsItsZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1,
			"{followup: fail, blocks: [{controller: {zone: east, topologyTolerance: none}, workers: [{node: a}]}, {controller: {zone: west, topologyTolerance: same}, workers: [{set: {}}]}]}")).follow()
		f.settle()
		f.expect("shop", "gpu", "nowhere") // the activator is in no zone, and no node is in the west
		for node, zone := range map[string]string{"a": "east", "b": "west"} {
			_, err := f.kube.CoreV1().Nodes().Update(t.Context(), readyNode(node, corev1.LabelTopologyZone, zone), metav1.UpdateOptions{})
			f.do(err)
		}
		f.settle()
		f.expect("shop", "gpu", "a by 0")
		_, err := f.kube.CoreV1().Nodes().Update(t.Context(), readyNode("a", corev1.LabelTopologyZone, "north"), metav1.UpdateOptions{})
		f.do(err)
		f.settle()
		f.expect("shop", "gpu", "b by 1")
	})
}

// Until the activator knows its zone, each policy for zones would take it for one of another zone.
func TestAnActivatorKnowsItsZoneBeforeThePoliciesAreInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1,
			"{followup: fail, blocks: [{controller: {zone: east, topologyTolerance: none}, workers: [{node: a}]}]}"))
		_, err := f.kube.CoreV1().Nodes().Update(t.Context(), readyNode("a", corev1.LabelTopologyZone, "east"), metav1.UpdateOptions{})
		f.do(err)
		asked := 0
		f.kube.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			return asked < 4, nil, apierrors.NewInternalError(errors.New("away"))
		})
		f.follow()
		f.do(f.policies.WaitUntilRead(t.Context()))
		f.expect("shop", "gpu", "a by 0")
	})
}

// So it does where reading the policies takes longer than it may take to find out.
func TestAnActivatorKnowsItsZoneAlthoughPoliciesAreReadLate(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			f := newCluster(t, policyObject("shop", "gpu", 1,
				"{followup: fail, blocks: [{controller: {zone: east, topologyTolerance: none}, workers: [{node: a}]}]}"))
			_, err := f.kube.CoreV1().Nodes().Update(t.Context(), readyNode("a", corev1.LabelTopologyZone, "east"), metav1.UpdateOptions{})
			f.do(err)
			began := time.Now()
			f.kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return time.Since(began) < 2*ownPatience, nil, apierrors.NewInternalError(errors.New("away"))
			})
			f.follow()
			f.do(f.policies.WaitUntilRead(t.Context()))
			f.expect("shop", "gpu", "a by 0")
		})
	}
}

// An activator that cannot find out starts all the same.
func TestAnActivatorDoesNotWaitLongForItsZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, onNode("a")))
		f.kube.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("away"))
		})
		f.follow()
		began := time.Now()
		f.do(f.policies.WaitUntilRead(t.Context()))
		if waited := time.Since(began); waited < ownPatience || waited > 2*ownPatience {
			t.Errorf("it starts after %v, want %v", waited, ownPatience)
		}
		f.expect("shop", "gpu", "a by 0")
	})
}

// Without the definitions, everything is as if there were no policies. Once they are there, they are followed.
func TestWithoutDefinitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t)
		var installed atomic.Bool
		missing := func(action clienttesting.Action) (bool, runtime.Object, error) {
			return !installed.Load(), nil, apierrors.NewNotFound(action.GetResource().GroupResource(), "")
		}
		f.dynamic.PrependReactor("list", "*", missing)
		f.dynamic.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
			_, _, err := missing(action)
			return !installed.Load(), nil, err
		})
		f.follow()
		waiting, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := f.policies.WaitUntilRead(waiting); err != nil {
			t.Errorf("WaitUntilRead() = %v, want that there is nothing to wait for", err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		f.expect("shop", "gpu", "any")
		if got := f.logs.FilterMessageSnippet("its CustomResourceDefinition is not installed").Len(); got != 2 {
			t.Errorf("that was logged %d times, want once for each kind: %v", got, f.logs.All())
		}
		if lists := countLists(f.dynamic.Actions()); lists > 200 {
			t.Errorf("it was asked %d times in ten minutes, want a back-off", lists)
		}
		installed.Store(true)
		f.apply(policyObject("shop", "gpu", 1, onNode("a")))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		f.expect("shop", "gpu", "a by 0")
	})
}

func countLists(actions []clienttesting.Action) (n int) {
	for _, a := range actions {
		if a.GetVerb() == "list" || a.GetVerb() == "watch" {
			n++
		}
	}
	return n
}

// An API server that fails for a moment does not mean that there are no policies.
func TestPoliciesThatCannotBeReadAtFirst(t *testing.T) {
	for name, err := range map[string]error{
		"no answer": apierrors.NewInternalError(errors.New("no leader")),
		"no rights": apierrors.NewForbidden(namespaced.GroupResource(), "", errors.New("RBAC: not read yet")),
	} {
		t.Run(name, func(t *testing.T) { testCannotBeReadAtFirst(t, err) })
	}
}

func testCannotBeReadAtFirst(t *testing.T, err error) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, onNode("a")))
		var failed atomic.Bool
		f.dynamic.PrependReactor("list", "placementpolicies", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if failed.Swap(true) {
				return false, nil, nil
			}
			return true, nil, err
		})
		f.follow()
		waiting, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := f.policies.WaitUntilRead(waiting); err != nil {
			t.Error("WaitUntilRead() =", err)
		}
		f.expect("shop", "gpu", "a by 0")
	})
}

// An edit that is refused may arrive together with a change of nodes, which what is in force follows all the same.
func TestARefusedEditAndAChangeOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, "{followup: fail, blocks: [{workers: [{set: {matchLabels: {disk: ssd}}}]}]}")).follow()
		f.settle()
		f.expect("shop", "gpu", "a by 0")
		for name, disk := range map[string]string{"a": "hdd", "b": "ssd"} {
			_, err := f.kube.CoreV1().Nodes().Update(t.Context(), readyNode(name, "disk", disk), metav1.UpdateOptions{})
			f.do(err)
		}
		f.apply(policyObject("shop", "gpu", 2, "{blocks: [{workers: [{set: {matchLabels: {disk: a b}}}]}]}"))
		f.expect("shop", "gpu", "b by 0")
	})
}

// A refusal names the policy that refuses, which may be the default that follows the policy that was asked.
func TestRefusedBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t,
			policyObject("shop", "gpu", 3, "{followup: fail, blocks: [{workers: [{node: a}]}]}"),
			policyObject("shop", "followed", 1, "{blocks: [{workers: [{node: a}]}]}"),
			policyObject("", "default", 2, onNode("a")),
		).follow()
		f.settle()
		for tag, want := range map[string]string{
			"gpu":       "PlacementPolicy shop/gpu (generation 3)",
			"followed":  "ClusterPlacementPolicy default (generation 2)",
			"no-policy": "ClusterPlacementPolicy default (generation 2)",
		} {
			if got := f.policies.Of("shop", tag).RefusedBy("shop"); got != want {
				t.Errorf("what has the tag %s is refused by %s, want %s", tag, got, want)
			}
		}
	})
}

// Nothing is in force while the nodes are not known: sets would be empty.
func TestWithoutNodesNothingIsInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t, policyObject("shop", "gpu", 1, onNode("a")))
		var forbidden atomic.Bool
		forbidden.Store(true)
		f.kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return forbidden.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
		})
		f.kube.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
			return forbidden.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", errors.New("no"))
		})
		f.follow()
		waiting, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := f.policies.WaitUntilRead(waiting); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitUntilRead() = %v, want that time ran out", err)
		}
		f.expect("shop", "gpu", "any")
		forbidden.Store(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		f.expect("shop", "gpu", "a by 0")
	})
}

// A status keeps what other activators have written, except for those that are gone.
func TestActivatorsShareAStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policyObject("shop", "gpu", 2, onNode("a"))
		p.Object["status"] = map[string]any{"activators": []any{
			map[string]any{"name": "activator-1", "observedGeneration": int64(2), "compiledGeneration": int64(1)},
			map[string]any{"name": "activator-9", "observedGeneration": int64(1), "compiledGeneration": int64(1)},
		}, "conditions": []any{map[string]any{
			"type": "Accepted", "status": "False", "reason": "Refused", "message": "spec.blocks: it is not known", "observedGeneration": int64(2), "lastTransitionTime": "2026-01-01T00:00:00Z",
		}}}
		f := newCluster(t, p)
		f.do(f.kube.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "activator-1"}}))
		f.follow()
		f.settle()
		status := f.status(p)
		want := []v1alpha1.ActivatorStatus{{Name: "activator-0", ObservedGeneration: 2, CompiledGeneration: 2}, {Name: "activator-1", ObservedGeneration: 2, CompiledGeneration: 1}}
		if diff := cmp.Diff(want, status.Activators); diff != "" {
			t.Error("its activators (-want, +got):\n" + diff)
		}
		// Another activator refuses this generation, and the condition must say so.
		if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.Accepted) {
			t.Errorf("its conditions are %+v, want the other's refusal", status.Conditions)
		}
		writes := countUpdates(f.dynamic.Actions())
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := countUpdates(f.dynamic.Actions()); writes != 1 || got != writes {
			t.Errorf("it was written %d times, and %d an hour later, want once", writes, got)
		}
		f.do(f.kube.CoreV1().Pods("knative-serving").Delete(t.Context(), "activator-1", metav1.DeleteOptions{}))
		time.Sleep(2 * recheck)
		f.settle()
		status = f.status(p)
		if len(status.Activators) != 1 || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Accepted) {
			t.Errorf("when the other is gone its activators are %v and its conditions %+v, want that it is in force", status.Activators, status.Conditions)
		}
	})
}

func countUpdates(actions []clienttesting.Action) (n int) {
	for _, a := range actions {
		if a.GetVerb() == "update" && a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

// A status that cannot be written is retried with a back-off, and delays nothing.
func TestAStatusThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t)
		var forbidden atomic.Bool
		forbidden.Store(true)
		f.dynamic.PrependReactor("update", "placementpolicies", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != "status" || !forbidden.Load() {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(namespaced.GroupResource(), "gpu", errors.New("no"))
		})
		f.follow()
		f.settle()
		p := policyObject("shop", "gpu", 1, onNode("a"))
		f.apply(p)
		f.expect("shop", "gpu", "a by 0")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := countUpdates(f.dynamic.Actions()); got < 10 || got > 25 {
			t.Errorf("it was tried %d times in ten minutes, want a back-off of up to a minute", got)
		}
		if got := f.logs.FilterMessageSnippet("Cannot write the status").Len(); got != 1 {
			t.Errorf("it was logged %d times, want once", got)
		}
		forbidden.Store(false)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !meta.IsStatusConditionTrue(f.status(p).Conditions, v1alpha1.Accepted) {
			t.Errorf("its status is %+v, want that it is in force", f.status(p))
		}
	})
}

// However many policies there are, and however often they change: compiling them takes a tenth of a core.
func TestCompilesRest(t *testing.T) {
	for _, tc := range []struct{ took, ago, want time.Duration }{
		{5 * time.Millisecond, 0, gather},
		{100 * time.Millisecond, 0, 900 * time.Millisecond},
		{100 * time.Millisecond, 600 * time.Millisecond, 300 * time.Millisecond},
		{100 * time.Millisecond, time.Hour, gather},
		{time.Minute, time.Second, 9*time.Minute - time.Second},
	} {
		if got := untilNext(tc.took, tc.ago); got != tc.want {
			t.Errorf("after one of %v, %v ago, the next one is in %v, want %v", tc.took, tc.ago, got, tc.want)
		}
	}
}
