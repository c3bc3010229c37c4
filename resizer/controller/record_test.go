package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"libra.dev/libra/pkg/pool"
)

// withAgent is a harness of a node whose agent lives.
func withAgent(t testing.TB) *harness {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.pool.agent = "a1"
	h.reconcile()
	return h
}

// recorded brings a loan into the record.
func (h *harness) recorded() {
	h.t.Helper()
	h.pool.pods = loan(res(200, 64))
	h.reconcile()
	h.clock.Step(testSettings.RecordAfter)
	h.reconcile()
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	h.kubelet()
	h.expect()
}

func TestRecordsWhatHasStood(t *testing.T) {
	h := withAgent(t)
	h.pool.pods = loan(res(200, 64))
	if got, again := h.reconcileResult(); got != nil || again != testSettings.RecordAfter {
		t.Errorf("patches %v and again after %v, want none and after %v", got, again, testSettings.RecordAfter)
	}
	h.clock.Step(testSettings.RecordAfter - time.Millisecond)
	h.expect()
	h.clock.Step(time.Millisecond)
	h.expect("borrower 500m/320Mi", "donor 300m/256Mi") // memory is never lowered, so it is not waited for
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	h.kubelet()

	h.pool.pods = nil
	h.expect("donor 500m/256Mi") // a restore waits for nothing
	h.clock.Step(testSettings.RecordAfter)
	h.kubelet()
	h.expect("borrower 500m/256Mi")
	h.kubelet()
	h.expect()
	for reason, want := range map[string]float64{reasonRecord: 4, reasonRestore: 1, reasonNudge: 0, reasonBackstop: 0} {
		if got := h.total("libra.resizer.resizes", reasonKey.String(reason)); got != want {
			t.Errorf("%v resizes by reason %s, want %v", got, reason, want)
		}
	}
	if got := h.total("libra.resizer.node.silent", nodeKey.String("n1")); got != 0 {
		t.Errorf("node silent = %v, want 0", got)
	}
}

func TestShortLoansAreNotRecorded(t *testing.T) {
	h := withAgent(t)
	for range 10 {
		h.pool.pods = loan(res(200, 64))
		h.expect()
		h.clock.Step(testSettings.RecordAfter * 9 / 10)
		h.expect()
		h.pool.pods = nil
		h.expect()
		h.clock.Step(testSettings.RecordAfter / 2)
		h.expect()
	}
}

// A balance that changes has not stood, but what it gives back is given back.
func TestChangingLoans(t *testing.T) {
	h := withAgent(t)
	h.recorded()
	h.pool.pods = loan(res(150, 64))
	h.expect("donor 350m/256Mi")
	h.kubelet()
	h.pool.pods = loan(res(250, 64))
	h.expect()
	h.clock.Step(testSettings.RecordAfter)
	h.expect("donor 250m/256Mi")
	h.kubelet()
	h.expect("borrower 750m/320Mi")
}

// With memory the kubelet writes the CPU that the spec says, so a patch of it leaves
// none there that is not due any more.
func TestMemoryTakesCPUThatIsNotDueAlong(t *testing.T) {
	h := withAgent(t)
	h.recorded()
	h.pool.pods = loan(res(200, 0))
	h.expect()
	h.clock.Step(testSettings.RecordAfter / 2)
	h.pool.pods = loan(res(100, 0))
	h.expect("donor 400m/256Mi")
	h.kubelet()
	h.clock.Step(testSettings.RecordAfter / 2)
	h.expect("borrower 600m/256Mi")
}

// Memory that the agent gave a borrower, and that the kubelet was not told of, must not
// be below the limit that the kubelet writes with a change of CPU.
func TestUnrecordedMemoryGoesWithCPU(t *testing.T) {
	h := withAgent(t)
	h.pool.pods = map[string]pool.Balance{"default/donor": {Borrowed: res(0, 64)}, "default/borrower": {Lent: res(0, 64)}}
	h.expect()
	h.clock.Step(testSettings.RecordAfter / 2)
	h.pool.pods = nil
	h.expect()
	h.pool.pods = loan(res(200, 0))
	h.expect()
	h.clock.Step(testSettings.RecordAfter)
	h.expect("donor 300m/320Mi")
	h.expect() // lowered only from what the kubelet has set, so that it looks at what is in use
	h.kubelet()
	h.expect("borrower 700m/256Mi", "donor 300m/256Mi")
	h.kubelet()
	h.pool.pods = nil
	h.expect("donor 500m/256Mi") // known to be taken back
}

// A quota that has no room for the memory that goes with CPU does not make CPU go
// without it.
func TestRefusedMemoryHoldsCPUBack(t *testing.T) {
	h := withAgent(t)
	h.pool.pods = map[string]pool.Balance{"default/donor": {Borrowed: res(0, 64)}, "default/borrower": {Lent: res(0, 64)}}
	h.expect()
	h.pool.pods = loan(res(200, 0)) // the first one ended, and its memory may still be in use
	h.expect()
	h.clock.Step(testSettings.RecordAfter)
	h.patchErr = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "donor", errors.New("exceeded quota"))
	for range 10 {
		h.expect()
		h.clock.Step(pool.LeaseTTL)
	}
	h.patchErr = nil
	h.expect("donor 300m/320Mi")
}

// A record that is not accepted harms nobody, and nobody else's record follows it.
func TestRefusedRecord(t *testing.T) {
	tests := map[string]func(h *harness){
		"by the API server": func(h *harness) {
			h.patchErr = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "borrower", errors.New("exceeded quota"))
			h.expect()
			h.patchErr = nil
		},
		"by the kubelet": func(h *harness) {
			h.expect("borrower 700m/256Mi")
			borrower := h.get("borrower")
			borrower.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred}}
			h.update(borrower)
			h.expect("borrower 500m/256Mi")
			h.kubelet()
		},
	}
	for name, refuse := range tests {
		t.Run(name, func(t *testing.T) {
			h := withAgent(t)
			h.pool.pods = loan(res(200, 0))
			h.expect()
			h.clock.Step(testSettings.RecordAfter)
			h.expect("donor 300m/256Mi")
			h.kubelet()
			refuse(h)
			if got := h.reasons(); len(got) != 1 || !slices.Contains([]string{"LibraResizeRefused", "LibraResizePending"}, got[0]) {
				t.Errorf("events %v, want one of a refusal", got)
			}
			h.expect()
			h.clock.Step(pool.LeaseTTL - time.Millisecond)
			h.expect()
			h.clock.Step(time.Millisecond)
			h.expect("borrower 700m/256Mi")
		})
	}
}

func TestResizeLatency(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", res(300, 256), byLibra))
	h.expect("donor 500m/256Mi")
	h.clock.Step(40 * time.Millisecond)
	h.expect()
	h.kubelet()
	h.expect()
	h.expect()
	if count, sum := h.histogram("libra.resizer.resize.latency"); count != 1 || sum < 0.0399 || sum > 0.0401 {
		t.Errorf("%d resizes took %v s in all, want one of 0.04", count, sum)
	}
}
