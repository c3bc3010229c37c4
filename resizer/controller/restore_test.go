package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/pool"
)

// The sweep: whatever is not at its user allocation for no reason is restored, at the
// start and later, with or without an agent or a pool.
func TestRestoresWhatAnotherProcessLeft(t *testing.T) {
	tests := map[string]struct {
		agent string
		err   error
	}{
		"no agent":      {},
		"an agent":      {agent: "a1"},
		"Redis is away": {err: errors.New("away")},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("low", res(300, 256), byLibra), testPod("high", res(700, 256), byLibra), testPod("whole", owed))
			h.pool.agent, h.pool.err = tc.agent, tc.err
			h.sweep("high 500m/256Mi", "low 500m/256Mi")
			h.sweep()
			// Later, because somebody wrote the spec in Libra's name.
			low := h.get("low")
			low.Spec.Containers[0].Resources.Limits = res(200, 256).List()
			h.update(low)
			h.sweep("low 500m/256Mi")
			h.sweep()
		})
	}
}

// sweep follows for a minute and compares the patches.
func (h *harness) sweep(want ...string) {
	h.t.Helper()
	got := h.follow(time.Minute)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		h.t.Errorf("patches (-want +got):\n%s", diff)
	}
}

func TestPoolAway(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.reconcile()
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/256Mi")
	h.kubelet()
	h.expect("borrower 700m/320Mi")
	h.kubelet()
	h.clock.Step(tick)
	h.reconcile()
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

	h.pool.err = nil // back with what it had
	h.kubelet()
	h.expect("donor 300m/256Mi")
}

func TestPoolNeverRead(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("low", res(300, 256), byLibra))
	h.pool.err = errors.New("away")
	h.expect("low 500m/256Mi")
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

func TestRevisionGoneBeforeItsPods(t *testing.T) {
	revision := testRevision(owed)
	h := newHarness(t, revision, testPod("donor", owed))
	h.pool.pods = map[string]pool.Balance{"default/donor": {Lent: res(200, 64)}}
	h.expect("donor 300m/256Mi")
	if err := h.kube.Delete(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	h.pool.pods = nil
	h.expect("donor 500m/256Mi")
}
