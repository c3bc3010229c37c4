package agent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/cgroup/cgrouptest"
)

func TestTrackerFollowsSettingsAndRevisions(t *testing.T) {
	options, err := ManagerOptions("n1")
	if err != nil {
		t.Fatal(err)
	}
	pod := podRunning(id)
	pod.Labels = map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}
	another := podRunning("other")
	another.Name, another.Labels = "q", map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u0"}
	reads := 0
	var failing error
	kube := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(pod, another, revisionOf(api.Resources{CPUMilli: 700}), nodeOfTwo()).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*servingv1.Revision); ok {
				if failing != nil {
					return failing
				}
				reads++
			}
			return c.Get(ctx, key, obj, opts...)
		}}).Build()
	files := cgrouptest.V2(filepath.Join("kubepods", id))
	for name, text := range cgrouptest.V2(filepath.Join("kubepods", "other")) {
		files[name] = text
	}
	_, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, cgrouptest.Tree(t, files), nil, nil)
	lending := &fixedLending{mode: api.ModeObserve, source: api.SourceNode}
	tracker.lending = lending

	look := func(name string) (podInfo, error) {
		_, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}})
		return tracker.pods.byPod["default/"+name], err
	}
	want := func(what string, node bool, allocationMilli int64) {
		t.Helper()
		info, err := look("p")
		if err != nil || info.node != node || info.allocation.CPUMilli != allocationMilli {
			t.Errorf("%s: node %v, %dm, %v; want %v, %dm", what, info.node, info.allocation.CPUMilli, err, node, allocationMilli)
		}
	}
	want("observe", false, 0)
	lending.mode = api.ModeLend
	failing = errors.New("away")
	if info, err := look("p"); !errors.Is(err, failing) || !info.allocation.IsZero() || info.container != id {
		t.Errorf("without an API server: %+v, %v; want the container, which is not weighed, and another try", info, err)
	}
	failing = nil
	want("lend", true, 700)
	if info, _ := look("p"); info.ceilingMilli != 0 {
		t.Errorf("in lend the pod may use %dm of what the node has idle, want none", info.ceilingMilli)
	}
	lending.mode = api.ModeFull
	want("full", true, 700)
	if info, _ := look("p"); info.ceilingMilli != 1800 {
		t.Errorf("in full the pod may use %dm, want up to what the node has but for the reserve", info.ceilingMilli)
	}
	lending.protect = api.ProtectStrict
	if info, _ := look("p"); !info.strict {
		t.Error("the pod may fall behind others while it is owed, where the settings are strict")
	}
	lending.protect = api.ProtectHalf
	if info, _ := look("p"); info.strict {
		t.Error("the pod gives way to nobody, where it is to keep half")
	}
	if reads != 1 {
		t.Errorf("the Revision was read %d times, want once", reads)
	}
	lending.source = api.SourceOwners
	want("owners", false, 700)
	lending.source = api.SourceNode
	if info, err := look("q"); err == nil || !strings.Contains(err.Error(), "UID") || !info.allocation.IsZero() {
		t.Errorf("a pod of a Revision that is not there any more: %+v, %v; want that it is not weighed", info, err)
	}

	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := tracker.followSettings(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	lending.change()
	if queue.Len() != 2 {
		t.Errorf("%d pods are looked at when the settings change, want both", queue.Len())
	}
}

// changingLending has settings that change just after they were read.
type changingLending struct{ *fixedLending }

func (l changingLending) For(namespace string) settings.Settings {
	defer l.change()
	return l.fixedLending.For(namespace)
}

// A pod that is looked at while the settings change is looked at again: with the former ones, which may be those of an
// agent that has not read any yet, it would take no part for as long as it lives.
func TestSettingsChangeWhileAPodIsLookedAt(t *testing.T) {
	options, err := ManagerOptions("n1")
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(podRunning(id)).Build()
	_, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", id))), nil, nil)
	tracker.lending = changingLending{&fixedLending{mode: api.ModeObserve, source: api.SourceNode}}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := tracker.followSettings(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "p"}}
	if _, err := tracker.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if queue.Len() != 1 {
		t.Fatalf("%d pods are to be looked at again, want the one", queue.Len())
	}
	if err := client.IgnoreNotFound(kube.Delete(t.Context(), podRunning(id))); err != nil {
		t.Fatal(err)
	}
	if _, err := tracker.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if names := tracker.pods.names(); len(names) != 0 {
		t.Errorf("pods that are gone are remembered: %v", names)
	}
}

// The agent sees from a pod's spec and its managed fields who set its limits.
func TestTrackerSeesOtherManagers(t *testing.T) {
	options, err := ManagerOptions("n1")
	if err != nil {
		t.Fatal(err)
	}
	more := api.Resources{CPUMilli: 900, MemoryBytes: 2 * userLimits.MemoryBytes}
	pod := podRunning(id)
	pod.Labels = map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}
	var fields []metav1.ManagedFieldsEntry
	var failing error
	kube := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(pod, revisionOf(userLimits), nodeOfTwo()).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*servingv1.Revision); ok && failing != nil {
				return failing
			}
			return errors.Join(c.Get(ctx, key, obj, opts...), withFields(obj, fields))
		}}).Build()
	_, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, cgrouptest.Tree(t, cgrouptest.V2(filepath.Join("kubepods", id))), nil, nil)
	for _, source := range []api.Source{api.SourceNode, api.SourceOwners} {
		for name, tc := range map[string]struct {
			mode   api.Mode
			limits api.Resources
			libra  []string // the limits that Libra set
			want   bool
		}{
			"as in the Revision":              {api.ModeFull, userLimits, nil, false},
			"another":                         {api.ModeFull, more, nil, true},
			"another, of CPU":                 {api.ModeFull, api.Resources{CPUMilli: 900, MemoryBytes: userLimits.MemoryBytes}, nil, true},
			"another, of memory":              {api.ModeLend, api.Resources{CPUMilli: 500, MemoryBytes: 300 * mib}, nil, true},
			"another, of memory beside Libra": {api.ModeFull, more, []string{"cpu"}, true},
			"Libra":                           {api.ModeFull, more, []string{"cpu", "memory"}, false},
			"it only observes":                {api.ModeObserve, more, nil, false},
		} {
			t.Run(string(source)+"/"+name, func(t *testing.T) {
				tracker.lending, tracker.allocations.byUID = &fixedLending{mode: tc.mode, source: source}, map[types.UID]api.Resources{}
				fields = setByLibra("renamed", tc.libra...)
				pod.Spec.Containers[1].Resources.Limits = tc.limits.List()
				if err := kube.Update(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
				for _, failing = range []error{nil, errors.New("away")} {
					_, err := tracker.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "p"}})
					if err != nil && failing == nil {
						t.Fatal(err)
					}
					info := tracker.pods.byPod["default/p"]
					if info.foreign != tc.want {
						t.Errorf("another manager set its limits: %v, want %v, where reading the Revision gives %v", info.foreign, tc.want, failing)
					}
					if asks := info.borrowsBeyond() != 0; asks != (!tc.want && source == api.SourceOwners && tc.mode == api.ModeFull) {
						t.Errorf("it may ask for more CPU: %v", asks)
					}
				}
			})
		}
	}
}

// A pod that borrowed before its mode became observe may use what it has beyond its own, and even a
// new agent knows what its own is.
func TestMemoryOwedOfObservers(t *testing.T) {
	options, err := ManagerOptions("n1")
	if err != nil {
		t.Fatal(err)
	}
	resized, other := podRunning(id), podRunning("other")
	other.Name = "q"
	for _, pod := range []*corev1.Pod{resized, other} {
		pod.Labels = map[string]string{serving.RevisionLabelKey: "f-00001", serving.RevisionUID: "u1"}
	}
	resized.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: actuate.FieldManager, Subresource: "resize", Operation: metav1.ManagedFieldsOperationUpdate}}
	kube := fake.NewClientBuilder().WithScheme(options.Scheme).WithObjects(revisionOf(userLimits)).Build()
	_, tracker, _ := newTestAgent(t, clock.RealClock{}, kube, "", nil, nil)
	for pod, want := range map[*corev1.Pod]int64{resized: userLimits.MemoryBytes, other: 0} {
		var info podInfo
		if err := tracker.lend(t.Context(), pod, &info); err != nil || info.memoryOwed != want || info.borrows || info.node || !info.allocation.IsZero() {
			t.Errorf("%s: %+v, %v; want that it is owed %d bytes and takes no part", pod.Name, info, err, want)
		}
	}
}

// The agent remembers what memory a pod is owed while its Revision cannot be read.
func TestMemoryOwedIsKept(t *testing.T) {
	p := newPodInfos()
	p.set("default/p", podInfo{container: id, allocation: userLimits, memoryOwed: userLimits.MemoryBytes})
	unknown, known := podInfo{container: id}, podInfo{container: id, memoryOwed: mib}
	for info, want := range map[*podInfo]int64{&unknown: userLimits.MemoryBytes, &known: mib} {
		if p.keepLending("default/p", info); info.memoryOwed != want {
			t.Errorf("%d bytes are owed, want %d", info.memoryOwed, want)
		}
	}
}

func TestPodsAreTriedAgainSoon(t *testing.T) {
	tries, request := retries(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "p"}}
	var waits time.Duration
	for range 100 {
		waits = tries.When(request)
	}
	if waits != retryMost {
		t.Errorf("a pod that cannot be looked at is tried again after %v, want %v", waits, retryMost)
	}
}
