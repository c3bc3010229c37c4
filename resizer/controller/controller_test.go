package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/backoff"
)

// fakePool is a Pool that answers what the test says.
type fakePool struct {
	pool.Pool
	pods  map[string]pool.Balance
	err   error
	opens int
}

func (p *fakePool) Read(context.Context, string) (pool.State, error) {
	return pool.State{Pods: p.pods}, p.err
}

func (p *fakePool) Open(context.Context, string) error {
	if p.err == nil {
		p.opens++
	}
	return p.err
}

type harness struct {
	*Controller
	t        *testing.T
	clock    *clocktesting.FakeClock
	kube     client.Client
	tracker  clienttesting.ObjectTracker
	pool     *fakePool
	events   *events.FakeRecorder
	reader   *sdkmetric.ManualReader
	patches  []string // pod and limits, in the order the API server accepted them
	patchErr error
	forbid   func(pod string) error // nil forbids nothing
	// keepOwner leaves the managed fields as they are.
	keepOwner bool
}

func newHarness(t *testing.T, objects ...client.Object) *harness {
	t.Helper()
	h := &harness{
		t:      t,
		clock:  clocktesting.NewFakeClock(time.Unix(1_000_000, 0)),
		pool:   &fakePool{},
		events: events.NewFakeRecorder(100),
		reader: sdkmetric.NewManualReader(),
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), servingv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	// The fake's own tracker does not know of subresources in managed fields.
	h.tracker = clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	h.kube = fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(h.tracker).WithReturnManagedFields().WithObjects(objects...).
		WithIndex(&corev1.Pod{}, nodeNameField, nodeNameOf).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: h.patchResize}).Build()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(h.reader))
	waiters := func(string) Waiter { return nil }
	c, err := New(h.clock, h.kube, h.pool, waiters, actuate.NewAPI(h.kube), h.events, provider,
		Limits{ResizesPerSecond: 50, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	h.Controller = c
	return h
}

// patchResize does what the API server does to a resize: it counts generations, and
// remembers who made it.
func (h *harness) patchResize(ctx context.Context, c client.Client, _ string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	h.mu.Lock() // patches come from several goroutines
	defer h.mu.Unlock()
	if h.patchErr != nil {
		return h.patchErr
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

// resizedBy makes a manager the one who changed both limits of a pod last.
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
		if slices.Contains(except, p.Name) {
			continue
		}
		p.Status.ObservedGeneration = p.Generation
		p.Status.Conditions = nil
		p.Status.ContainerStatuses = running(specLimits(&p))
		h.update(&p)
	}
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

// reasons are the reasons of all Events since it was last called.
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

// total is the sum of a metric's points that have all attributes.
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
			}
		}
	}
	return sum
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

// testPod runs with limits in its spec and in force.
func testPod(name string, limits api.Resources, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1, Labels: map[string]string{
			api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: "f"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{
			{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: limits.List(), Requests: res(100, 64).List()}},
			{Name: api.QueueProxyContainer, Resources: corev1.ResourceRequirements{Requests: res(25, 0).List()}},
		}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, ObservedGeneration: 1, ContainerStatuses: running(limits)},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

var owed = res(500, 256)

func loan(r api.Resources) map[string]pool.Balance {
	return map[string]pool.Balance{"default/donor": {Lent: r}, "default/borrower": {Borrowed: r}}
}

func TestLoanAndReturn(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.expect()

	h.pool.pods = loan(res(200, 64))
	if got, again := h.reconcileResult(); !slices.Equal(got, []string{"donor 300m/192Mi"}) || again != heldTick {
		t.Errorf("patches %v and again after %v, want the donor's alone and again after %v", got, again, heldTick)
	}
	h.expect() // the decrease is not in force
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	h.expect()
	h.kubelet()
	if got, again := h.reconcileResult(); got != nil || again != tick {
		t.Errorf("patches %v and again after %v when all is in force, want none and %v", got, again, tick)
	}

	h.pool.pods = nil
	h.expect("borrower 500m/256Mi", "donor 500m/256Mi")
	h.clock.Step(40 * time.Millisecond)
	h.kubelet()
	h.expect()
	if got := h.total("libra.resizer.below.owed", functionKey.String("default/f")); got < 0.0399 || got > 0.0401 {
		t.Errorf("%v s below what was owed, want 0.04", got)
	}
	if got := h.total("libra.resizer.restores", causeKey.String(causeReleased)); got != 1 {
		t.Errorf("%v restores of released pods, want 1", got)
	}
	for d, want := range map[direction]float64{restore: 1, lower: 2, raise: 1} {
		if got := h.total("libra.resizer.resizes", directionKey.String(d.String()), resultKey.String(resultAccepted)); got != want {
			t.Errorf("%v accepted resizes that %v, want %v", got, d, want)
		}
	}
	if got := h.reasons(); got != nil {
		t.Errorf("events %v, want none", got)
	}
}

func TestDecreaseInProgressPaysNothing(t *testing.T) {
	tests := map[string]func(*corev1.Pod){
		"in progress": func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue}}
		},
		"status not lower yet": func(p *corev1.Pod) { p.Status.ContainerStatuses = running(owed) },
		"an older generation":  func(p *corev1.Pod) { p.Status.ObservedGeneration = p.Generation - 1 },
	}
	for name, undo := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
			h.pool.pods = loan(res(200, 64))
			h.expect("donor 300m/192Mi")
			h.kubelet()
			donor := h.get("donor")
			undo(donor)
			h.update(donor)
			h.expect()
			h.kubelet()
			h.expect("borrower 700m/320Mi")
		})
	}
}

// A donor that was restored must not count as lowered because the cache is late.
func TestOwnPatchIsNewerThanTheCache(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
	h.expect("donor 300m/192Mi")
	h.kubelet()
	h.expect()
	late := h.get("donor")

	h.pool.pods = nil
	h.expect("donor 500m/256Mi")
	late.ResourceVersion = h.get("donor").ResourceVersion
	h.update(late) // the cache shows what was before the restore

	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/192Mi")
	h.expect()
	h.kubelet()
	h.expect("borrower 700m/320Mi")
}

func TestRestoresWhatAnotherProcessLeft(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("low", res(300, 256), byLibra), testPod("high", res(700, 256), byLibra), testPod("whole", owed))
	h.expect("high 500m/256Mi", "low 500m/256Mi")
	if h.pool.opens != 0 {
		t.Errorf("the node may lend before all pods were seen whole")
	}
	h.kubelet("high")
	h.expect()
	if h.pool.opens != 0 {
		t.Errorf("the node may lend while a pod is above its user allocation")
	}
	h.kubelet()
	h.expect()
	if h.pool.opens != 1 {
		t.Errorf("the node was opened %d times once all was whole, want 1", h.pool.opens)
	}
	if got := h.total("libra.resizer.restores", causeKey.String(causeStart)); got != 1 {
		t.Errorf("%v restores at the start, want 1", got)
	}
}

func TestOpenEachSecond(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	for range 10 {
		h.reconcile()
		h.clock.Step(tick / 2)
	}
	if h.pool.opens != 5 {
		t.Errorf("opened %d times in 5 s, want 5", h.pool.opens)
	}
	if got := h.total("libra.resizer.node.open", nodeKey.String("n1")); got != 1 {
		t.Errorf("node open = %v, want 1", got)
	}
}

func TestPoolAway(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.reconcile()
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/192Mi")
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	h.kubelet()
	h.clock.Step(tick)
	h.reconcile()
	opens := h.pool.opens

	h.pool.err = errors.New("away")
	h.clock.Step(pool.LeaseTTL - time.Millisecond)
	h.expect() // what was read last still stands
	h.clock.Step(time.Millisecond)
	h.expect("borrower 500m/256Mi", "donor 500m/256Mi")
	if got := h.total("libra.resizer.restores", causeKey.String(causePoolLost)); got != 1 {
		t.Errorf("%v restores because the pool was lost, want 1", got)
	}
	if got := h.total("libra.resizer.pool.errors", operationKey.String("read")); got != 2 {
		t.Errorf("%v read errors, want 2", got)
	}

	h.pool.err = nil // back with what it had, though all was restored
	h.reconcile()
	h.clock.Step(tick)
	h.kubelet()
	h.reconcile()
	if h.pool.opens != opens {
		t.Errorf("the node may lend on a pool that was away for a lease and is not empty")
	}
	h.pool.pods = nil
	h.reconcile()
	h.kubelet()
	h.reconcile()
	if h.pool.opens != opens+1 {
		t.Errorf("the node may not lend though all is whole and the pool empty")
	}
}

func TestPoolBlinks(t *testing.T) {
	tests := map[string]struct {
		pods map[string]pool.Balance // after the error
		open bool
	}{
		"the same pool: goes on lending":         {pods: loan(res(200, 64)), open: true},
		"an empty pool: all must be whole first": {open: false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
			h.reconcile()
			h.pool.pods = loan(res(200, 64))
			h.reconcile()
			h.kubelet()
			h.clock.Step(tick)
			h.pool.err = errors.New("away")
			h.reconcile()
			opens := h.pool.opens
			h.pool.err, h.pool.pods = nil, tc.pods
			h.reconcile()
			if got := h.pool.opens > opens; got != tc.open {
				t.Errorf("open = %v, want %v", got, tc.open)
			}
		})
	}
}

func TestPoolNeverRead(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("low", res(300, 256), byLibra))
	h.pool.err = errors.New("away")
	h.expect("low 500m/256Mi")
}

func TestLeftAlone(t *testing.T) {
	tests := map[string]struct {
		owed   api.Resources
		change func(*corev1.Pod)
		events []string
	}{
		"queue-proxy has limits": {
			owed:   owed,
			change: func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(1000, 0).List() },
			events: []string{"LibraLeftAlone"},
		},
		"no limits in the Revision": {
			change: func(p *corev1.Pod) {},
			events: []string{"LibraLeftAlone"},
		},
		"Guaranteed": {
			owed:   owed,
			change: func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSGuaranteed },
			events: []string{"LibraLeftAlone"},
		},
		"restarts to be resized": {
			owed: owed,
			change: func(p *corev1.Pod) {
				p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
			},
			events: []string{"LibraLeftAlone"},
		},
		"no such container": {
			owed:   owed,
			change: func(p *corev1.Pod) { p.Spec.Containers[0].Name = "other" },
			events: []string{"LibraLeftAlone"},
		},
		"not opted in":  {owed: owed, change: func(p *corev1.Pod) { delete(p.Labels, api.EnabledLabel) }},
		"another node":  {owed: owed, change: func(p *corev1.Pod) { p.Spec.NodeName = "n2" }},
		"no Revision":   {owed: owed, change: func(p *corev1.Pod) { p.Labels[serving.RevisionLabelKey] = "gone" }},
		"has ended":     {owed: owed, change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"is going away": {owed: res(300, 192), change: func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x"} }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(tc.owed), testPod("donor", res(300, 192), tc.change))
			h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(100, 64)}}
			h.expect()
			h.expect()
			if diff := cmp.Diff(tc.events, h.reasons()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyLimitsTheUserSet(t *testing.T) {
	h := newHarness(t, testRevision(res(500, 0)), testPod("donor", res(500, 0)), testPod("borrower", res(500, 0)))
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/0Mi")
	h.kubelet()
	h.expect("borrower 700m/0Mi")
}

func TestRevisionGoneBeforeItsPods(t *testing.T) {
	revision := testRevision(owed)
	h := newHarness(t, revision, testPod("donor", owed))
	h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
	h.expect("donor 300m/192Mi")
	if err := h.kube.Delete(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	h.pool.pods = nil
	h.expect("donor 500m/256Mi")
}

func TestRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/192Mi")
	h.kubelet()

	h.patchErr = apierrors.NewForbidden(pods, "borrower", errors.New("exceeds allocatable"))
	h.expect()
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.patchErr = nil
	h.expect("donor 500m/256Mi") // nobody can take what it lends
	h.kubelet()
	h.pool.pods = nil
	h.expect()
	h.pool.pods = loan(res(200, 64))
	h.expect() // another loan is not tried at once

	h.clock.Step(pool.LeaseTTL)
	h.expect("donor 300m/192Mi")
	h.kubelet()
	h.patchErr = apierrors.NewForbidden(pods, "borrower", errors.New("exceeds allocatable"))
	h.expect()
	h.patchErr = nil
	h.expect("donor 500m/256Mi")
	h.kubelet()
	h.clock.Step(pool.LeaseTTL)
	h.expect() // longer than the last time
	h.clock.Step(pool.LeaseTTL)
	h.expect("donor 300m/192Mi")
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	if got := h.total("libra.resizer.resizes", resultKey.String(resultRefused)); got != 2 {
		t.Errorf("%v refused resizes, want 2", got)
	}
}

// A quota may have no room for a restore before the borrower is lowered.
func TestForbiddenRestoreIsSentAgainAfterTheLowers(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	objects := []client.Object{testRevision(owed), testPod("donor", res(300, 256), byLibra), testPod("borrower", res(700, 256), byLibra)}
	h := newHarness(t, objects...)
	h.forbid = func(pod string) error {
		if pod == "donor" && !slices.Contains(h.patches, "borrower 500m/256Mi") {
			return apierrors.NewForbidden(pods, pod, errors.New("exceeded quota"))
		}
		return nil
	}
	got, _ := h.reconcileResult()
	if diff := cmp.Diff([]string{"borrower 500m/256Mi", "donor 500m/256Mi"}, got); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	if got := h.reasons(); got != nil {
		t.Errorf("events %v, want none", got)
	}

	h = newHarness(t, objects...)
	h.forbid = func(pod string) error {
		if pod == "donor" {
			return apierrors.NewForbidden(pods, pod, errors.New("exceeded quota"))
		}
		return nil
	}
	h.expect("borrower 500m/256Mi")
	h.forbid = nil
	h.expect() // it backs off then
	h.clock.Step(backoff.Min)
	h.expect("donor 500m/256Mi")
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestOptsOutWhileOnLoan(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	replaced := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "donor", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "x", "field is immutable")})
	tests := map[string]struct {
		first error    // the answer to the first restore
		later []string // what is sent after it
	}{
		"restored":            {},
		"tried until it is":   {first: apierrors.NewInternalError(errors.New("etcd")), later: []string{"donor 500m/256Mi"}},
		"gone":                {first: apierrors.NewNotFound(pods, "donor")},
		"conflict":            {first: apierrors.NewConflict(pods, "donor", errors.New("uid"))},
		"another of its name": {first: replaced},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("donor", owed))
			h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
			h.expect("donor 300m/192Mi")
			donor := h.get("donor")
			delete(donor.Labels, api.EnabledLabel)
			h.update(donor)
			h.patchErr = tc.first
			if tc.first == nil {
				h.expect("donor 500m/256Mi") // whatever its balance is by now
			} else {
				h.expect()
			}
			h.patchErr = nil
			h.clock.Step(backoff.Min)
			h.expect(tc.later...)
			h.clock.Step(tick)
			h.expect()
			if len(h.nodes) != 0 {
				t.Errorf("the pod is still known")
			}
		})
	}
}

// What became of the resize cannot be told any more: what is owed is set in any case.
func TestOptsOutWhileAResizeIsUnanswered(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed))
	h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
	h.patchErr = context.DeadlineExceeded
	h.expect()
	h.patchErr = nil
	donor := h.get("donor")
	delete(donor.Labels, api.EnabledLabel)
	h.update(donor)
	h.clock.Step(backoff.Min)
	h.expect("donor 500m/256Mi")
}

func TestUnansweredRaiseIsReckonedWith(t *testing.T) {
	tests := map[string]struct {
		learn func(h *harness)
		want  []string
	}{
		"nothing is known": {learn: func(h *harness) { h.clock.Step(tick) }},
		"never accepted":   {learn: func(h *harness) { h.clock.Step(pool.LeaseTTL) }, want: []string{"other 700m/320Mi"}},
		"the cache has what it did": {learn: func(h *harness) {
			p := h.get("borrower")
			p.Generation++
			h.update(p)
			h.kubelet()
		}, want: []string{"other 700m/320Mi"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("donor", res(300, 192), byLibra), testPod("borrower", owed), testPod("other", owed))
			h.pool.pods = loan(res(200, 64))
			h.patchErr = context.DeadlineExceeded
			h.expect()
			h.patchErr = nil
			// The loan goes to another pod. The first may have it all the same.
			h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}, "default/other": {Borrowed: res(200, 64)}}
			tc.learn(h)
			h.expect(tc.want...)
		})
	}
}

func TestLeavesPodsToOtherManagers(t *testing.T) {
	tests := map[string]func(*corev1.Pod){
		"set at admission":           func(*corev1.Pod) {},
		"resized by another manager": resizedBy("vpa-updater"),
	}
	for name, by := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("other", res(900, 1024), by), testPod("donor", owed), testPod("borrower", owed))
			h.pool.pods = map[string]pool.Balance{"default/other": {Lent: res(100, 64)}}
			h.expect()
			if diff := cmp.Diff([]string{"LibraLeftAlone"}, h.reasons()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			h.pool.pods = nil
			h.expect()
			if h.pool.opens != 1 {
				t.Errorf("opened %d times, want 1: what others set keeps nobody from lending", h.pool.opens)
			}
			if got := h.reasons(); got != nil {
				t.Errorf("events %v, want the one", got)
			}
		})
	}
}

// Another manager sets the CPU of a pod of which Libra lowered both.
func TestPutsBackItsOwnBeforeItLeavesAPod(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", res(900, 192), byLibra, func(p *corev1.Pod) {
		p.ManagedFields[0].FieldsV1.Raw = bytes.Replace(p.ManagedFields[0].FieldsV1.Raw, []byte(`"f:cpu":{},`), nil, 1)
	}))
	h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
	h.keepOwner = true
	h.expect("donor 900m/256Mi")
	h.expect()
	if diff := cmp.Diff([]string{"LibraLeftAlone"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestRevisionStaysAway(t *testing.T) {
	tests := map[string]struct {
		change []func(*corev1.Pod)
		opens  int
	}{
		"of a pod that Libra resized": {change: []func(*corev1.Pod){byLibra}},
		"of a pod that it never did":  {opens: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testPod("low", res(300, 256), tc.change...))
			h.expect()
			if got := h.reasons(); got != nil {
				t.Errorf("events %v before the cache had time, want none", got)
			}
			h.clock.Step(revisionGrace)
			h.expect()
			h.expect()
			if diff := cmp.Diff([]string{"LibraLeftAlone"}, h.reasons()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if got := min(h.pool.opens, 1); got != tc.opens {
				t.Errorf("opened: %d, want %d", got, tc.opens)
			}
		})
	}
}

func TestBacksOffPerPod(t *testing.T) {
	for _, err := range []error{
		apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "donor", errors.New("uid")),
		apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "donor"),
		apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "donor", nil),
		apierrors.NewInternalError(errors.New("etcd")),
		context.DeadlineExceeded,
	} {
		t.Run(err.Error(), func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("other", owed))
			h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
			h.patchErr = err
			if _, again := h.reconcileResult(); again != heldTick {
				t.Errorf("again after %v, want %v", again, heldTick)
			}
			h.patchErr = nil
			h.pool.pods["default/other"] = pool.Balance{Lent: res(200, 64)}
			h.expect("other 300m/192Mi")
			h.clock.Step(backoff.Min)
			h.expect("donor 300m/192Mi")
		})
	}
}

func TestKubeletDoesNotTakeUpARaise(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.pool.pods = loan(res(200, 64))
	h.reconcile()
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	borrower := h.get("borrower")
	borrower.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible}}
	h.update(borrower)
	h.expect("borrower 500m/256Mi", "donor 500m/256Mi")
	h.expect()
	if diff := cmp.Diff([]string{"LibraResizePending"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestMemoryThatIsInUse(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/192Mi")
	h.expect()
	h.clock.Step(memoryPatience)
	h.expect()
	h.clock.Step(time.Millisecond)
	h.expect("donor 300m/256Mi")
	if diff := cmp.Diff([]string{"LibraMemoryInUse"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.kubelet()
	h.expect("borrower 700m/256Mi") // its CPU is not held back any longer
	h.clock.Step(memoryRest)
	h.expect("donor 300m/192Mi")
}

// A borrower that uses what it gave back keeps the memory, but not the CPU.
func TestBorrowedMemoryThatIsInUse(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("borrower", res(700, 320), byLibra))
	h.expect("borrower 500m/256Mi")
	h.expect()
	h.clock.Step(memoryPatience + time.Millisecond)
	h.expect("borrower 500m/320Mi")
	h.kubelet()
	h.expect()
	h.clock.Step(memoryRest)
	h.expect("borrower 500m/256Mi")
}

func TestRevisionComesLate(t *testing.T) {
	h := newHarness(t, testPod("low", res(300, 256), byLibra))
	if got, again := h.reconcileResult(); got != nil || again != tick {
		t.Errorf("patches %v and again after %v, want none and %v", got, again, tick)
	}
	if err := h.kube.Create(t.Context(), testRevision(owed)); err != nil {
		t.Fatal(err)
	}
	h.expect("low 500m/256Mi")
}

func TestRateLimitServesRestoresFirst(t *testing.T) {
	objects := []client.Object{testRevision(owed)}
	balances := map[string]pool.Balance{}
	for i := range 20 {
		objects = append(objects, testPod(fmt.Sprintf("donor%02d", i), owed))
		balances[fmt.Sprintf("default/donor%02d", i)] = pool.Balance{Lent: res(200, 64)}
	}
	objects = append(objects, testPod("low", res(300, 256), byLibra))
	h := newHarness(t, objects...)
	h.pool.pods = balances
	got, again := h.reconcileResult()
	if len(got) != 20 || !slices.Contains(got, "low 500m/256Mi") || again != heldTick {
		t.Errorf("patches %v and again after %v, want 20 with the restore among them and again after %v", got, again, heldTick)
	}
	h.clock.Step(tick)
	if got := h.reconcile(); len(got) != 1 {
		t.Errorf("patches %v, want the one that was held back", got)
	}
	if got := h.total("libra.resizer.resizes", resultKey.String(resultLimited)); got != 1 {
		t.Errorf("%v rate-limited, want 1", got)
	}
}

func TestForgetsANodeWithoutPods(t *testing.T) {
	pod := testPod("donor", owed)
	h := newHarness(t, testRevision(owed), pod)
	h.reconcile()
	if err := h.kube.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, again := h.reconcileResult(); again != 0 || len(h.nodes) != 0 {
		t.Errorf("again after %v with %d nodes known, want never and none", again, len(h.nodes))
	}
}

// The whole path with the in-memory pool: an invocation that lends, one that
// borrows, and their ends.
func TestWithThePool(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	memory := pool.NewMemory(h.clock)
	h.pools = memory
	h.expect() // opens the node

	begin := func(id, pod string, surplus, want api.Resources) {
		t.Helper()
		_, err := memory.Begin(t.Context(), "n1", pool.Invocation{ID: id, Function: "default/f", Pod: "default/" + pod, Domain: "default", Owner: "a",
			Predicted: res(200, 64), Duration: 10 * time.Second, Surplus: surplus, Want: want})
		if err != nil {
			t.Fatal(err)
		}
	}
	begin("1", "donor", res(200, 64), api.Resources{})
	h.expect() // lazy: nothing is lowered before somebody borrows
	begin("2", "borrower", api.Resources{}, res(150, 64))
	h.expect("donor 350m/192Mi")
	h.kubelet()
	h.expect("borrower 650m/320Mi")
	h.kubelet()
	end := func(id string) {
		t.Helper()
		if _, err := memory.End(t.Context(), "n1", pool.Ending{ID: id, Duration: time.Second, Status: 200}); err != nil {
			t.Fatal(err)
		}
	}
	end("1")
	h.expect("borrower 500m/256Mi", "donor 500m/256Mi")
	end("2")
	h.kubelet()

	begin("3", "donor", res(200, 64), api.Resources{})
	begin("4", "borrower", api.Resources{}, res(150, 64))
	h.expect("donor 350m/192Mi")
	h.kubelet()
	h.clock.Step(pool.LeaseTTL + time.Millisecond) // nobody renews
	h.expect("donor 500m/256Mi")
}
