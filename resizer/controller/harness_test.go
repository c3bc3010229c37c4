package controller

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
)

// fakePool answers what the test says.
type fakePool struct {
	pods   map[string]pool.Balance
	needs  map[string]int64
	raised []string
	silent bool // it does not hear the agent
	err    error
}

func (p *fakePool) Read(context.Context, string) (pool.State, error) {
	s := pool.State{Pods: p.pods, Needs: p.needs, Raised: p.raised}
	if !p.silent {
		s.Agent = "a1"
	}
	return s, p.err
}

// noFollower never hears of anything.
type noFollower struct{}

func (noFollower) Next(ctx context.Context) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

// fakeLive are settings that say what the test says.
type fakeLive struct {
	now      settings.Settings
	sources  map[string]api.Source // of namespaces that have one of their own
	unsynced bool
	changed  func()
}

func (l *fakeLive) Synced() bool      { return !l.unsynced }
func (l *fakeLive) OnChange(f func()) { l.changed = f }

func (l *fakeLive) For(string) settings.Settings { return l.now }

func (l *fakeLive) Source(namespace, _ string) api.Source {
	if source, ok := l.sources[namespace]; ok {
		return source
	}
	return l.now.Source
}

var testSettings = Settings{ResizesPerSecond: 50, Burst: 20, TotalResizesPerSecond: 500, TotalBurst: 100}

type harness struct {
	*Controller
	t         testing.TB
	clock     *clocktesting.FakeClock
	kube      client.Client
	tracker   clienttesting.ObjectTracker
	pool      *fakePool
	following *fakeLive
	events    *events.FakeRecorder
	reader    *sdkmetric.ManualReader
	spans     *tracetest.SpanRecorder
	patches   []string // pod and limits, in the order the API server accepted them
	patchErr  error
	attempts  int                    // of patches, accepted or not
	forbid    func(pod string) error // nil forbids nothing
	// forbidLimits is asked of limits that would be accepted; nil forbids none.
	forbidLimits func(pod string, limits api.Resources) error
	// mutate is what a webhook makes of a pod that is resized; nil leaves it as it is.
	mutate func(*corev1.Pod)
	// keepOwner leaves the managed fields as they are.
	keepOwner bool
}

// kinds makes them once: that takes longer than most tests.
var kinds = sync.OnceValues(func() (*runtime.Scheme, runtime.Decoder) {
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(clientgoscheme.AddToScheme(scheme), servingv1.AddToScheme(scheme)))
	return scheme, serializer.NewCodecFactory(scheme).UniversalDecoder()
})

// newHarness makes a controller in a cluster with the objects, and a ready agent on the node.
func newHarness(t testing.TB, objects ...client.Object) *harness {
	t.Helper()
	h := &harness{
		t:         t,
		clock:     clocktesting.NewFakeClock(time.Unix(1_000_000, 0)),
		pool:      &fakePool{},
		following: &fakeLive{now: settings.Settings{Mode: api.ModeFull, MaxMode: api.ModeFull, Source: api.SourceOwners}},
		events:    events.NewFakeRecorder(100),
		reader:    sdkmetric.NewManualReader(),
		spans:     tracetest.NewSpanRecorder(),
	}
	scheme, decoder := kinds()
	// The fake's own tracker does not know of subresources in managed fields.
	h.tracker = clienttesting.NewObjectTracker(scheme, decoder)
	objects = append(objects, testAgent("agent", ready))
	h.kube = fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(h.tracker).WithReturnManagedFields().WithObjects(objects...).
		WithInterceptorFuncs(interceptor.Funcs{Get: h.read, List: h.list, SubResourcePatch: h.patchResize}).Build()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(h.reader))
	h.begin(provider)
	return h
}

// read reads an object as it is. The fake client would take it through JSON, which takes most of the time of these
// tests.
func (h *harness) read(_ context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	kind, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	found, err := h.tracker.Get(resource, key.Namespace, key.Name)
	if err == nil {
		reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(found).Elem())
	}
	return err
}

// list lists objects as they are.
func (h *harness) list(_ context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	kind, err := c.GroupVersionKindFor(list)
	if err != nil {
		return err
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	var options client.ListOptions
	options.ApplyOptions(opts)
	found, err := h.tracker.List(resource, kind, options.Namespace)
	if err != nil {
		return err
	}
	objects, err := meta.ExtractList(found)
	if err != nil {
		return err
	}
	return meta.SetList(list, slices.DeleteFunc(objects, func(o runtime.Object) bool {
		object := o.(client.Object)
		of := fields.Set{}
		if pod, ok := o.(*corev1.Pod); ok {
			of[nodeNameField] = pod.Spec.NodeName
		}
		return options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(object.GetLabels())) ||
			options.FieldSelector != nil && !options.FieldSelector.Matches(of)
	}))
}

// begin makes a controller that knows nothing of the one before it.
func (h *harness) begin(meters metric.MeterProvider) {
	h.t.Helper()
	c, err := New(h.clock, cached{h.kube}, h.pool, h.following, noFollower{}, h.events, meters,
		sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(h.spans)), testSettings)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Controller = c
}

func (h *harness) restart() { h.begin(noop.NewMeterProvider()) }

// patchResize does what the API server does to a resize: it counts generations, and
// remembers who made it.
func (h *harness) patchResize(ctx context.Context, c client.Client, _ string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	h.mu.Lock() // patches come from several goroutines
	defer h.mu.Unlock()
	h.attempts++
	if h.patchErr != nil {
		return h.patchErr
	}
	if h.forbidLimits != nil {
		if err := h.forbidLimits(obj.GetName(), patchedLimits(h.t, obj, patch)); err != nil {
			return err
		}
	}
	if h.forbid != nil {
		if err := h.forbid(obj.GetName()); err != nil {
			return err
		}
	}
	if err := c.SubResource("resize").Patch(ctx, obj, patch, opts...); err != nil {
		return err
	}
	pod := obj.(*corev1.Pod)
	pod.Generation++
	if h.mutate != nil {
		h.mutate(pod)
	}
	var options client.SubResourcePatchOptions
	options.ApplyOptions(opts)
	if err := c.Update(ctx, pod); err != nil {
		return err
	}
	if !h.keepOwner {
		resizedBy(options.FieldManager)(pod)
	}
	if err := h.tracker.Update(corev1.SchemeGroupVersion.WithResource("pods"), pod.DeepCopy(), pod.Namespace); err != nil {
		return err
	}
	h.patches = append(h.patches, pod.Name+" "+specLimits(pod).String())
	return nil
}

// patchedLimits returns the limits of the user's container in a patch.
func patchedLimits(t testing.TB, obj client.Object, patch client.Patch) api.Resources {
	t.Helper()
	data, err := patch.Data(obj)
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := json.Unmarshal(data, &pod); err != nil {
		t.Fatal(err)
	}
	return specLimits(&pod)
}

// resizedBy makes a manager the last to change both limits of a pod.
func resizedBy(manager string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: manager, Subresource: "resize", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:containers":{"k:{\"name\":\"user-container\"}":{"f:resources":{"f:limits":{"f:cpu":{},"f:memory":{}}}}}}}`)},
		}}
	}
}

var byLibra = resizedBy(actuate.FieldManager)

func specLimits(pod *corev1.Pod) api.Resources {
	for _, c := range pod.Spec.Containers {
		if c.Name == api.UserContainer {
			return api.FromList(c.Resources.Limits)
		}
	}
	return api.Resources{}
}

// reconcile reconciles once and returns the patches that it made, sorted, for
// those of one rank may be sent in any order.
func (h *harness) reconcile() []string {
	h.t.Helper()
	got, _ := h.reconcileResult()
	slices.Sort(got)
	return got
}

func (h *harness) reconcileResult() ([]string, time.Duration) {
	h.t.Helper()
	h.patches = nil
	result, err := h.Reconcile(h.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "n1"}})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.patches, result.RequeueAfter
}

func (h *harness) expect(want ...string) {
	h.t.Helper()
	if diff := cmp.Diff(want, h.reconcile()); diff != "" {
		h.t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// kubelet brings what the spec says in force, except for the named pods.
func (h *harness) kubelet(except ...string) {
	h.t.Helper()
	var pods corev1.PodList
	if err := h.kube.List(h.t.Context(), &pods); err != nil {
		h.t.Fatal(err)
	}
	for _, p := range pods.Items {
		limits := specLimits(&p)
		if p.Namespace == settings.AgentNamespace || slices.Contains(except, p.Name) || p.Status.ObservedGeneration == p.Generation && !slices.ContainsFunc(p.Status.Conditions, ofResize) &&
			cmp.Equal(p.Status.ContainerStatuses, running(limits)) {
			continue
		}
		p.Status.ObservedGeneration = p.Generation
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, ofResize)
		p.Status.ContainerStatuses = running(limits)
		h.update(&p)
	}
}

func ofResize(c corev1.PodCondition) bool {
	return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
}

func (h *harness) update(pod *corev1.Pod) {
	h.t.Helper()
	status := *pod.Status.DeepCopy()
	if err := h.kube.Update(h.t.Context(), pod); err != nil {
		h.t.Fatal(err)
	}
	pod.Status = status
	if err := h.kube.Status().Update(h.t.Context(), pod); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) get(name string) *corev1.Pod {
	h.t.Helper()
	var pod corev1.Pod
	if err := h.kube.Get(h.t.Context(), types.NamespacedName{Namespace: "default", Name: name}, &pod); err != nil {
		h.t.Fatal(err)
	}
	return &pod
}

// reasons returns the reasons of all Events since its last call.
func (h *harness) reasons() []string {
	var reasons []string
	for {
		select {
		case e := <-h.events.Events:
			reasons = append(reasons, strings.Fields(e)[1])
		default:
			return reasons
		}
	}
}

// total returns the sum of a metric's points that have all attributes.
func (h *harness) total(name string, want ...attribute.KeyValue) float64 {
	h.t.Helper()
	var data metricdata.ResourceMetrics
	if err := h.reader.Collect(h.t.Context(), &data); err != nil {
		h.t.Fatal(err)
	}
	has := func(set attribute.Set) bool {
		return !slices.ContainsFunc(want, func(kv attribute.KeyValue) bool {
			v, _ := set.Value(kv.Key)
			return v != kv.Value
		})
	}
	var sum float64
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						sum += float64(p.Value)
					}
				}
			case metricdata.Sum[float64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						sum += p.Value
					}
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						sum += float64(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					if has(p.Attributes) {
						sum += p.Sum
					}
				}
			}
		}
	}
	return sum
}

// points returns how many series a gauge has.
func (h *harness) points(name string) int {
	h.t.Helper()
	var data metricdata.ResourceMetrics
	if err := h.reader.Collect(h.t.Context(), &data); err != nil {
		h.t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if d, ok := m.Data.(metricdata.Gauge[int64]); ok && m.Name == name {
				return len(d.DataPoints)
			}
		}
	}
	return 0
}

func testRevision(limits api.Resources) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "f", Labels: map[string]string{api.EnabledLabel: api.EnabledValue}}}
	r.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: limits.List()}}}
	return r
}

func running(limits api.Resources) []corev1.ContainerStatus {
	return []corev1.ContainerStatus{{
		Name:      api.UserContainer,
		State:     corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		Resources: &corev1.ResourceRequirements{Limits: limits.List()},
	}}
}

// testPod runs with limits in its spec and in force. It is younger than the controller,
// so that no agent can have written its cgroup before.
func testPod(name string, limits api.Resources, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1,
			CreationTimestamp: metav1.Unix(1_000_000+int64(2*startSlack/time.Second), 0), Labels: map[string]string{
				api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: "f"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{
			{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: limits.List(), Requests: res(100, 64).List()}},
			{Name: api.QueueProxyContainer, Resources: corev1.ResourceRequirements{Requests: res(25, 0).List()}},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ObservedGeneration: 1, ContainerStatuses: running(limits)},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// testAgent is an agent on the node.
func testAgent(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: settings.AgentNamespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{agentLabel: settings.Agent}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "agent"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// agent makes the node's agent ready and heard by the pool, or neither.
func (h *harness) agent(isReady bool) {
	h.t.Helper()
	h.pool.silent = !isReady
	p := testAgent("agent")
	if err := h.kube.Get(h.t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		h.t.Fatal(err)
	}
	if p.Status.Conditions = nil; isReady {
		ready(p)
	}
	h.update(p)
}

// follow reconciles for d as often as the controller asks for, and after a minute ten times less
// often, with a kubelet that applies everything. It returns the patches.
func (h *harness) follow(d time.Duration) []string {
	h.t.Helper()
	var got []string
	start := h.clock.Now()
	for end := start.Add(d); h.clock.Now().Before(end); {
		patches, again := h.reconcileResult()
		got = append(got, patches...)
		h.kubelet()
		if h.clock.Since(start) > time.Minute {
			again *= 10
		}
		h.clock.Step(min(again, end.Sub(h.clock.Now())))
	}
	return got
}

// goingAway makes a pod one that is being deleted.
func goingAway(p *corev1.Pod) {
	p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Unix(1_000_000, 0)}, []string{"x"}
}

// old makes a pod older than the controller.
func old(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(0, 0) }

func res(cpuMilli, memoryMi int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: memoryMi << 20}
}

var owed = res(500, 256)

// lends makes each of the pods borrow so many MiB.
func lends(mi int64, pods ...string) map[string]pool.Balance {
	balances := map[string]pool.Balance{}
	for _, pod := range pods {
		balances["default/"+pod] = pool.Balance{Borrowed: res(0, mi)}
	}
	return balances
}

func (h *harness) create(objects ...client.Object) {
	h.t.Helper()
	for _, o := range objects {
		if err := h.kube.Create(h.t.Context(), o); err != nil {
			h.t.Fatal(err)
		}
	}
}
