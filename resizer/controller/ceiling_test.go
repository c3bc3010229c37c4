package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

// underNode are the settings that give ready pods their ceilings.
var underNode = settings.Settings{Mode: api.ModeFull, MaxMode: api.ModeFull, Source: api.SourceNode}

// testNode can give pods so much CPU.
func testNode(milli int64) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Allocatable: res(milli, 4096).List()}}
}

func ready(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

// withCeilings is a harness of a node of 2 cores under source node.
func withCeilings(t testing.TB, pods ...client.Object) *harness {
	h := newHarness(t, append([]client.Object{testRevision(owed), testNode(2000)}, pods...)...)
	h.following.now = underNode
	return h
}

func (h *harness) setAllocatable(milli int64) {
	h.t.Helper()
	node := testNode(milli)
	if err := errors.Join(h.kube.Delete(h.t.Context(), node), h.kube.Create(h.t.Context(), testNode(milli))); err != nil {
		h.t.Fatal(err)
	}
}

// change changes a pod as somebody other than Libra does.
func (h *harness) change(name string, f func(*corev1.Pod)) {
	h.t.Helper()
	pod := h.get(name)
	f(pod)
	h.update(pod)
}

func TestCeilingOfAReadyPod(t *testing.T) {
	for _, agent := range []bool{false, true} {
		t.Run(fmt.Sprint("agent ", agent), func(t *testing.T) {
			h := withCeilings(t, testPod("p", owed))
			h.agent(agent)
			h.following.now.CPUReserveMilli = 200
			h.expect() // it is not ready
			requests := h.get("p").Spec.Containers[0].Resources.Requests
			h.change("p", ready)
			h.expect("p 1800m/256Mi")
			h.expect()
			h.kubelet()
			h.change("p", func(p *corev1.Pod) { p.Status.Conditions = nil }) // it keeps what it has
			if got := h.follow(time.Minute); got != nil {
				t.Errorf("patches %v in a minute in which nothing changes, want none", got)
			}
			if got := h.get("p").Spec.Containers[0].Resources.Requests; !cmp.Equal(got, requests) {
				t.Errorf("requests %v, want %v as before", got, requests)
			}
			if got := h.total("libra.resizer.resizes", reasonKey.String(reasonCeiling), directionKey.String(raise.String())); got != 1 {
				t.Errorf("%v patches to a ceiling, want 1", got)
			}
			if got := h.reasons(); got != nil {
				t.Errorf("events %v, want none", got)
			}
		})
	}
}

// The spec follows whatever decides on the ceiling, there and back.
func TestCeilingFollows(t *testing.T) {
	const there = "p 2000m/256Mi"
	tests := map[string]struct {
		change func(h *harness)
		back   func(h *harness)
		want   string
	}{
		"the source":            {func(h *harness) { h.following.now.Source = api.SourceOwners }, func(h *harness) { h.following.now = underNode }, "p 500m/256Mi"},
		"the namespace":         {func(h *harness) { h.following.sources = map[string]api.Source{"default": api.SourceOwners} }, func(h *harness) { h.following.sources = nil }, "p 500m/256Mi"},
		"the mode":              {func(h *harness) { h.following.now.Mode = api.ModeLend }, func(h *harness) { h.following.now = underNode }, "p 500m/256Mi"},
		"the most of all modes": {func(h *harness) { h.following.now.MaxMode = api.ModeObserve }, func(h *harness) { h.following.now = underNode }, "p 500m/256Mi"},
		"the most of all modes, of a pod that says more": {func(h *harness) {
			h.change("p", annotated(api.ModeAnnotation, "full"))
			h.following.now.MaxMode = api.ModeLend
		}, func(h *harness) { h.following.now = underNode }, "p 500m/256Mi"},
		"no settings any more": {func(h *harness) { h.following.now = settings.Default }, func(h *harness) { h.following.now = underNode }, "p 500m/256Mi"},
		"the pod's mode": {func(h *harness) { h.change("p", annotated(api.ModeAnnotation, "observe")) },
			func(h *harness) { h.change("p", func(p *corev1.Pod) { p.Annotations = nil }) }, "p 500m/256Mi"},
		"max-cpu": {func(h *harness) { h.change("p", annotated(api.MaxCPUAnnotation, "1200m")) },
			func(h *harness) { h.change("p", func(p *corev1.Pod) { p.Annotations = nil }) }, "p 1200m/256Mi"},
		"the reserve":     {func(h *harness) { h.following.now.CPUReserveMilli = 250 }, func(h *harness) { h.following.now = underNode }, "p 1750m/256Mi"},
		"the allocatable": {func(h *harness) { h.setAllocatable(900) }, func(h *harness) { h.setAllocatable(2000) }, "p 900m/256Mi"},
	}
	for name, tc := range tests {
		for _, agent := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", agent ", agent), func(t *testing.T) {
				h := withCeilings(t, testPod("p", owed, ready))
				h.agent(agent)
				h.expect(there)
				h.kubelet()
				for _, step := range []struct {
					f    func(*harness)
					want string
				}{{tc.change, tc.want}, {tc.back, there}, {tc.change, tc.want}} {
					step.f(h)
					h.expect(step.want)
					h.kubelet()
					if got := h.follow(5 * time.Second); got != nil {
						t.Errorf("patches %v after %q, want none", got, step.want)
					}
				}
				if got := h.total("libra.resizer.resizes", reasonKey.String(reasonCeiling)); got != 4 {
					t.Errorf("%v patches for ceilings, want 4", got)
				}
			})
		}
	}
}

func TestNoCeiling(t *testing.T) {
	tests := map[string]struct {
		owed   api.Resources
		change func(*corev1.Pod)
		events []string
	}{
		"mode lend":                             {owed, annotated(api.ModeAnnotation, "lend"), nil},
		"no CPU limit":                          {res(0, 256), func(*corev1.Pod) {}, nil},
		"an unreadable one":                     {owed, annotated(api.MaxCPUAnnotation, "all"), []string{"LibraMaxCPURefused"}},
		"an allocation above what the node has": {res(3000, 256), func(*corev1.Pod) {}, nil},
		"queue-proxy has limits": {owed, func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(1000, 0).List() },
			[]string{"LibraLeftAlone"}},
		"going away": {owed, func(p *corev1.Pod) {
			goingAway(p)
			p.Status.Conditions = nil
		}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(tc.owed), testNode(2000), testPod("p", tc.owed, ready, tc.change))
			h.following.now = underNode
			for range 3 {
				h.expect()
				h.clock.Step(tick)
			}
			if diff := cmp.Diff(tc.events, h.reasons()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// A node that is not known, or is gone, changes nothing that was known about it.
func TestCeilingWithoutANode(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed, ready))
	h.following.now = underNode
	h.expect()
	if err := h.kube.Create(t.Context(), testNode(2000)); err != nil {
		t.Fatal(err)
	}
	h.expect("p 2000m/256Mi")
	if err := h.kube.Delete(t.Context(), testNode(2000)); err != nil {
		t.Fatal(err)
	}
	h.expect()
}

func TestCeilingOfAPodThatOptsOut(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.change("p", func(p *corev1.Pod) { delete(p.Labels, api.EnabledLabel) })
	h.expect("p 500m/256Mi")
	h.expect()
}

// Another manager's limit is never taken for a ceiling, nor a ceiling for another's.
func TestCeilingYields(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.kubelet()
	pod := h.get("p")
	pod.Spec.Containers[0].Resources.Limits = res(900, 256).List()
	resizedBy("vpa-updater")(pod)
	if err := h.tracker.Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace); err != nil {
		t.Fatal(err)
	}
	h.expect()
	h.kubelet()
	if got := h.follow(time.Minute); got != nil {
		t.Errorf("patches %v of a pod that another manager changed, want none", got)
	}
	if diff := cmp.Diff([]string{"LibraLeftAlone"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// quotaOf refuses more milli CPU than this in a limit.
func (h *harness) quotaOf(milli int64) {
	h.forbidLimits = func(pod string, limits api.Resources) error {
		if limits.CPUMilli > milli {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("exceeded quota: limits.cpu"))
		}
		return nil
	}
}

func TestCeilingRefused(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready), testPod("q", res(300, 256), ready, byLibra))
	h.quotaOf(600)
	h.expect("q 500m/256Mi") // what it is owed is not refused with the rest
	if got := h.follow(tick); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	if diff := cmp.Diff([]string{"LibraCeilingRefused", "LibraCeilingRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	// Nor is memory, which is lent as ever.
	h.pool.pods = lends(64, "p")
	if diff := cmp.Diff([]string{"p 500m/320Mi"}, h.follow(5*time.Second)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	h.attempts = 0
	h.follow(time.Hour)
	if most := 2 * int(time.Hour/refusalMax+5); h.attempts > most {
		t.Errorf("%d attempts in an hour, want at most %d", h.attempts, most)
	}
	if got := h.reasons(); got != nil {
		t.Errorf("events %v, want no more", got)
	}
	h.forbidLimits, h.pool.pods = nil, nil
	got := h.follow(refusalMax)
	for _, want := range []string{"p 2000m/256Mi", "q 2000m/256Mi"} {
		if !slices.Contains(got, want) {
			t.Errorf("patches %v when there is room, want %q", got, want)
		}
	}
}

// More of a ceiling may be refused than was accepted, and nothing is taken back for it.
func TestHigherCeilingRefused(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.kubelet()
	h.quotaOf(2000)
	h.setAllocatable(4000)
	if got := h.follow(time.Minute); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	if diff := cmp.Diff([]string{"LibraCeilingRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// A ceiling that the kubelet does not take up is taken back, and tried again later.
func TestKubeletDoesNotTakeUpACeiling(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.change("p", func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible})
	})
	h.expect("p 500m/256Mi")
	if diff := cmp.Diff([]string{"LibraResizePending"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.kubelet()
	h.clock.Step(pool.LeaseTTL - tick)
	h.expect()
	h.clock.Step(tick)
	h.expect("p 2000m/256Mi")
}

// Memory and the ceiling have a patch each: otherwise nothing would tell which one a quota has no
// room for.
func TestCeilingGoesAfterMemory(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.pool.pods = lends(64, "p")
	got, again := h.reconcileResult()
	if diff := cmp.Diff([]string{"p 500m/320Mi"}, got); diff != "" || again != heldTick {
		t.Errorf("again after %v, want %v; patches (-want +got):\n%s", again, heldTick, diff)
	}
	h.expect("p 2000m/320Mi")
}

// A controller that starts takes nothing back before it knows the settings, and gives up
// waiting for them.
func TestCeilingsAtTheStart(t *testing.T) {
	h := withCeilings(t, testPod("p", res(2000, 256), ready, byLibra))
	h.following.unsynced, h.following.now = true, settings.Default
	if got := h.follow(livePatience / 2); got != nil {
		t.Errorf("patches %v before the settings are read, want none", got)
	}
	h.following.unsynced, h.following.now = false, underNode
	if got := h.follow(time.Minute); got != nil {
		t.Errorf("patches %v of a pod at its ceiling, want none", got)
	}
	h.restart()
	h.following.unsynced, h.following.now = true, settings.Default
	if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(livePatience+2*tick)); diff != "" {
		t.Errorf("patches without settings (-want +got):\n%s", diff)
	}
}

func TestKeptOfANode(t *testing.T) {
	node := testNode(2000)
	node.Labels, node.Status.Images = map[string]string{"a": "b"}, []corev1.ContainerImage{{Names: []string{"image"}}}
	node.Status.Capacity = res(2100, 5000).List()
	got := keepSize(node)
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Allocatable: res(2000, 0).List(), Capacity: res(0, 5000).List()}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	for milli, want := range map[int64]bool{2000: false, 1900: true} {
		if got := allocatableChanged.Update(crevent.UpdateEvent{ObjectOld: node, ObjectNew: testNode(milli)}); got != want {
			t.Errorf("a Node that has %dm now wakes: %v, want %v", milli, got, want)
		}
	}
}

// A change of the settings wakes every node that is followed, and does not block.
func TestSettingsWake(t *testing.T) {
	h := withCeilings(t)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	h.wakeAll() // nobody yet
	if err := h.awaken(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		h.node(fmt.Sprint("n", i))
	}
	h.wakeAll()
	if got := queue.Len(); got != 3 {
		t.Errorf("%d nodes woken, want 3", got)
	}
}

func TestCeilingEventSaysWhatHappensInstead(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.quotaOf(600)
	h.expect()
	got := <-h.events.Events
	for _, want := range []string{"LibraCeilingRefused", `"user-container"`, "500m", "2000m", "node agent", "limits.cpu"} {
		if !strings.Contains(got, want) {
			t.Errorf("event %q does not say %q", got, want)
		}
	}
}

// Kubernetes refuses every resize of a pod that is older than a quota on limits.cpu and has a
// container without a CPU limit, including the one back from the ceiling. The refusal is reported,
// and the resize is tried again and in nobody's way.
func TestQuotaThatRefusesTheWayBack(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.kubelet()
	h.forbid = func(pod string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("failed quota: team: must specify limits.cpu for: queue-proxy"))
	}
	h.attempts = 0
	if got := h.follow(time.Hour); got != nil || h.attempts > 0 {
		t.Errorf("patches %v, %d attempts, want none: the ceiling is in the spec already", got, h.attempts)
	}
	h.following.now.Source = api.SourceOwners
	if got := h.follow(time.Hour); got != nil {
		t.Errorf("patches %v, want none", got)
	}
	if most := int(time.Hour/backOffMax) + 10; h.attempts == 0 || h.attempts > most {
		t.Errorf("%d attempts in an hour, want 1 to %d", h.attempts, most)
	}
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.forbid = nil
	if diff := cmp.Diff([]string{"p 500m/256Mi"}, h.follow(2*backOffMax)); diff != "" {
		t.Errorf("patches when it is accepted (-want +got):\n%s", diff)
	}
}

// The most that a LimitRange allows binds through the API server alone: a ceiling that it refuses
// stays out of the spec, and one that it accepts is there.
func TestLimitRangeBoundsCeilings(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready), testPod("q", owed, ready, annotated(api.MaxCPUAnnotation, "900m")))
	h.forbidLimits = func(pod string, limits api.Resources) error {
		if limits.CPUMilli <= 1000 {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod,
			errors.New("maximum cpu usage per Container is 1, but limit is 2"))
	}
	h.expect("q 900m/256Mi")
	if diff := cmp.Diff([]string{"LibraCeilingRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.kubelet()
	if got := h.follow(time.Hour); got != nil {
		t.Errorf("patches %v, want none", got)
	}
}
