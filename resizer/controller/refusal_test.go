package controller

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

func TestRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/256Mi")
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
	h.expect("donor 300m/256Mi")
	h.kubelet()
	h.patchErr = apierrors.NewForbidden(pods, "borrower", errors.New("exceeds allocatable"))
	h.expect()
	h.patchErr = nil
	h.expect("donor 500m/256Mi")
	h.kubelet()
	h.clock.Step(pool.LeaseTTL)
	h.expect() // longer than the last time
	h.clock.Step(pool.LeaseTTL)
	h.expect("donor 300m/256Mi")
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
	// both are due at once when the agent says that the borrower is shrunk.
	bothDue := func() *harness {
		h := newHarness(t, objects...)
		h.pool.agent, h.pool.version = "a1", 1
		h.expect()
		h.clock.Step(testSettings.RecordAfter)
		h.pool.acted = 1
		return h
	}
	h := bothDue()
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

	h = bothDue()
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
			h := newHarness(t, testRevision(owed), testPod("donor", res(300, 256), byLibra), testPod("borrower", owed), testPod("other", owed))
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
			h.clock.Step(backoff.Min)
			if _, again := h.reconcileResult(); again != 2*backoff.Min {
				t.Errorf("again after %v, want %v: not before it may be tried", again, 2*backoff.Min)
			}
			h.clock.Step(backoff.Min / 2)
			if _, again := h.reconcileResult(); again != 3*backoff.Min/2 {
				t.Errorf("again after %v, want what is left of the wait, %v", again, 3*backoff.Min/2)
			}
			h.patchErr = nil
			h.pool.pods["default/other"] = pool.Balance{Lent: res(200, 64)}
			h.expect("other 300m/256Mi")
			h.clock.Step(2 * backoff.Min)
			h.expect("donor 300m/256Mi")
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
	h.expect("borrower 500m/256Mi")
	h.expect() // the kubelet has yet to see that it is taken back
	h.kubelet()
	h.expect("donor 500m/256Mi")
	if diff := cmp.Diff([]string{"LibraResizePending"}, h.reasons()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
