package controller

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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
	h.expect("borrower 500m/256Mi")
	h.kubelet()
	h.expect("donor 500m/256Mi")
	if got := h.total("libra.resizer.restores", causeKey.String(causePoolLost)); got != 1 {
		t.Errorf("%v restores because the pool was lost, want 1", got)
	}
	if got := h.total("libra.resizer.pool.errors", operationKey.String("read")); got != 3 {
		t.Errorf("%v read errors, want 3", got)
	}

	h.pool.err = nil // back with what it had
	h.kubelet()
	h.expect("donor 300m/256Mi")
}

func TestPoolNeverRead(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("low", res(300, 256), byLibra))
	h.pool.err = errors.New("away")
	h.expect()
	h.clock.Step(pool.LeaseTTL - time.Millisecond)
	h.expect() // it may be the one read that fails, and the pod may lend
	h.clock.Step(time.Millisecond)
	h.expect("low 500m/256Mi")
}

func TestFirstReadFails(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", res(300, 256), byLibra), testPod("borrower", res(700, 256), byLibra))
	h.pool.agent, h.pool.pods = "a1", loan(res(200, 0))
	h.pool.err = errors.New("away")
	h.expect()
	h.clock.Step(tick)
	h.pool.err = nil
	h.expect()
	if got := h.total("libra.resizer.node.silent", nodeKey.String("n1")); got != 0 {
		t.Errorf("node silent = %v, want 0", got)
	}
}

// While Redis is away, the log tells when that began to count and when it was over.
func TestPoolAwayIsLoggedOnce(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	var lines []string
	ctx := logf.IntoContext(t.Context(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	for _, away := range []error{nil, errors.New("away"), nil} {
		h.pool.err = away
		for range 20 {
			if _, err := h.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "n1"}}); err != nil {
				t.Fatal(err)
			}
			h.clock.Step(tick)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "for a lease") || !strings.Contains(lines[1], "again") {
		t.Errorf("logged %q, want that it was lost and that it is back", lines)
	}
}

func TestForgetsANodeWithoutPods(t *testing.T) {
	pod := testPod("donor", owed)
	h := newHarness(t, testRevision(owed), pod)
	h.reconcile()
	if err := h.kube.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got := h.points("libra.resizer.node.silent"); got != 1 {
		t.Errorf("%d nodes in the metric, want 1", got)
	}
	if _, again := h.reconcileResult(); again != 0 || len(h.nodes) != 0 {
		t.Errorf("again after %v with %d nodes known, want never and none", again, len(h.nodes))
	}
	if got := h.points("libra.resizer.node.silent"); got != 0 {
		t.Errorf("%d nodes in the metric after the node was forgotten, want none", got)
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
