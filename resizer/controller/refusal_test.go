package controller

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

func forbidden(pod string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, pod, errors.New("exceeded quota"))
}

// Memory that is refused is tried again, ever more seldom, and reported once.
func TestRefusedMemory(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.patchErr = forbidden("p")
	for _, wait := range []time.Duration{pool.LeaseTTL, 2 * pool.LeaseTTL, 4 * pool.LeaseTTL} {
		attempts := h.attempts
		h.expect()
		h.clock.Step(wait - time.Millisecond)
		h.expect()
		if got := h.attempts - attempts; got != 1 {
			t.Errorf("%d attempts within %v, want 1", got, wait)
		}
		h.clock.Step(time.Millisecond)
	}
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.patchErr = nil
	h.expect("p 500m/320Mi")
	h.kubelet()
	h.expect()
	// More is refused, and what is accepted and in force stays.
	h.pool.pods = lends(128, "p")
	h.patchErr = forbidden("p")
	h.expect()
	h.patchErr = nil
	h.clock.Step(pool.LeaseTTL - time.Millisecond)
	h.expect()
	h.clock.Step(time.Millisecond)
	h.expect("p 500m/384Mi")
	if got := h.total("libra.resizer.resizes", resultKey.String(resultRefused)); got != 4 {
		t.Errorf("%v refused resizes, want 4", got)
	}
}

// That less is in force says nothing about more.
func TestMoreIsRefusedLessAndLessOften(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.kubelet()
	h.pool.pods = lends(128, "p")
	h.patchErr = forbidden("p")
	before := h.attempts
	h.follow(time.Minute)
	if got := h.attempts - before; got > 4 {
		t.Errorf("%d attempts in a minute, want them after 5, 10 and 20 s", got)
	}
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// An API server that serves no resizes does not say so of the pod.
func TestAnAPIServerWithoutResizes(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.patchErr = apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", schema.GroupResource{Resource: "pods"}, "", "the server could not find the requested resource", 0, true)
	h.expect()
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// When more is refused, a raise that was accepted and is not in force yet stays.
func TestRefusedMemoryBeyondARaiseUnderWay(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.pool.pods = lends(128, "p")
	h.patchErr = forbidden("p")
	h.expect()
	h.patchErr = nil
	h.clock.Step(pool.LeaseTTL / 2)
	h.expect()
	h.kubelet()
	h.clock.Step(pool.LeaseTTL / 2)
	h.expect("p 500m/384Mi")
}

// A webhook that stores other limits refuses in its own way, and is not asked every second.
func TestAWebhookThatStoresOtherLimits(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.mutate = func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = owed.List() }
	h.follow(time.Minute)
	if h.attempts == 0 || h.attempts > 5 {
		t.Errorf("%d attempts in a minute, want a few", h.attempts)
	}
	if diff := cmp.Diff([]string{"LibraResizeRefused"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := h.total("libra.resizer.resizes", resultKey.String(resultAccepted)); got != 0 {
		t.Errorf("%v resizes count as accepted", got)
	}
	h.mutate = nil
	if got := h.follow(time.Minute); !slices.Contains(got, "p 500m/320Mi") {
		t.Errorf("patches without the webhook: %v, want what the pod borrows", got)
	}
}

// A lack of room for much does not keep a pod from less.
func TestLessThanWasRefused(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.forbidLimits = func(pod string, limits api.Resources) error {
		if limits.MemoryBytes > 512<<20 {
			return forbidden(pod)
		}
		return nil
	}
	h.pool.needs = map[string]int64{"default/p": 4 << 30}
	h.expect()
	h.pool.needs = map[string]int64{"default/p": 512 << 20}
	h.expect("p 500m/512Mi")
}

func TestBacksOffPerPod(t *testing.T) {
	for _, err := range []error{
		apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("uid")),
		apierrors.NewInternalError(errors.New("etcd")),
		context.DeadlineExceeded,
	} {
		t.Run(err.Error(), func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("p", owed), testPod("other", owed))
			h.pool.pods = lends(64, "p")
			h.patchErr = err
			if _, again := h.reconcileResult(); again != heldTick {
				t.Errorf("again after %v, want %v", again, heldTick)
			}
			h.clock.Step(backoff.Min)
			if _, again := h.reconcileResult(); again != 2*backoff.Min {
				t.Errorf("again after %v, want %v: not before it may be tried", again, 2*backoff.Min)
			}
			h.clock.Step(backoff.Min / 2)
			if _, again := h.reconcileResult(); again != 3*backoff.Min/2 {
				t.Errorf("again after %v, want what is left of the wait, %v", again, 3*backoff.Min/2)
			}
			h.patchErr = nil
			h.pool.pods = lends(64, "p", "other")
			h.expect("other 500m/320Mi")
			h.clock.Step(2 * backoff.Min)
			h.expect("p 500m/320Mi")
		})
	}
}

// A raise that the kubelet does not take up is taken back, and tried again later.
func TestKubeletDoesNotTakeUpMemory(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.pool.pods = lends(64, "p")
	h.expect("p 500m/320Mi")
	h.change("p", func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible})
	})
	h.expect("p 500m/256Mi")
	h.expect() // the kubelet has yet to see that it is taken back
	h.kubelet()
	h.expect()
	if diff := cmp.Diff([]string{"LibraResizePending"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	h.clock.Step(pool.LeaseTTL)
	h.expect("p 500m/320Mi")
}

func TestRefusedRepairIsGivenUp(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed, old))
	h.agent(false)
	attempts := 0
	h.forbid = func(pod string) error {
		attempts++
		return forbidden(pod)
	}
	h.follow(10 * time.Minute)
	if attempts != repairTries {
		t.Errorf("tried %d times in ten minutes, want %d", attempts, repairTries)
	}
	if got := h.reasons(); !slices.Contains(got, "LibraResizeRefused") {
		t.Errorf("events %v, want one of the refusal", got)
	}
}
