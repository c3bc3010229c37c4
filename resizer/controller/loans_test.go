package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func TestLoanAndReturn(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	h.expect()

	h.pool.pods = loan(res(200, 64))
	if got, again := h.reconcileResult(); !slices.Equal(got, []string{"donor 300m/256Mi"}) || again != tick {
		t.Errorf("patches %v and again after %v, want the donor's alone and again after %v: a status is an event", got, again, tick)
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
	h.expect("borrower 500m/256Mi")
	h.expect() // what the donor gets is still in force with the borrower
	h.kubelet()
	h.expect("donor 500m/256Mi")
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
			h.expect("donor 300m/256Mi")
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
	h.expect("donor 300m/256Mi")
	h.kubelet()
	h.expect()
	late := h.get("donor")

	h.pool.pods = nil
	h.expect("donor 500m/256Mi")
	late.ResourceVersion = h.get("donor").ResourceVersion
	h.update(late) // the cache shows what was before the restore

	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/256Mi")
	h.expect()
	h.kubelet()
	h.expect("borrower 700m/320Mi")
}

func TestOnlyLimitsTheUserSet(t *testing.T) {
	h := newHarness(t, testRevision(res(500, 0)), testPod("donor", res(500, 0)), testPod("borrower", res(500, 0)))
	h.pool.pods = loan(res(200, 64))
	h.expect("donor 300m/0Mi")
	h.kubelet()
	h.expect("borrower 700m/0Mi")
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

// The whole path with the in-memory pool: an invocation that lends, one that
// borrows, and their ends.
func TestWithThePool(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("donor", owed), testPod("borrower", owed))
	memory := pool.NewMemory(h.clock)
	h.pools = memory
	heartbeat := func() {
		t.Helper()
		state, err := memory.Read(t.Context(), "n1")
		if err != nil {
			t.Fatal(err)
		}
		open, err := memory.Heartbeat(t.Context(), "n1", pool.Heartbeat{Agent: "a1", Epoch: state.Epoch, Whole: true, Acted: state.Version, Lendable: res(4000, 4096),
			Pods: map[string]int64{"default/donor": 0, "default/borrower": 0}})
		if err != nil || !open {
			t.Fatalf("heartbeat: open = %v, %v", open, err)
		}
	}
	heartbeat()
	h.expect()

	begin := func(id, pod string, surplus, want api.Resources) {
		t.Helper()
		_, err := memory.Begin(t.Context(), "n1", pool.Invocation{ID: id, Function: "default/f", Pod: "default/" + pod, Domain: "default", Owner: "a",
			Predicted: res(200, 64), Duration: 10 * time.Second, Allocation: owed, Surplus: surplus, Want: want})
		if err != nil {
			t.Fatal(err)
		}
	}
	end := func(id string) {
		t.Helper()
		if _, err := memory.End(t.Context(), "n1", pool.Ending{ID: id, Duration: time.Second, Status: 200}); err != nil {
			t.Fatal(err)
		}
	}
	stand := func() {
		h.reconcile()
		h.clock.Step(testSettings.RecordAfter)
		heartbeat()
	}
	begin("1", "donor", res(200, 64), api.Resources{})
	stand()
	h.expect() // lazy: nothing is lowered before somebody borrows
	begin("2", "borrower", api.Resources{}, res(150, 64))
	stand()
	h.expect("borrower 500m/320Mi", "donor 350m/256Mi")
	h.kubelet()
	h.expect("borrower 650m/320Mi")
	h.kubelet()
	end("1")
	h.expect() // the agent has not said yet that the borrower is shrunk
	stand()
	h.expect("borrower 500m/256Mi", "donor 500m/256Mi")
	end("2")
	h.kubelet()

	begin("3", "donor", res(200, 64), api.Resources{})
	begin("4", "borrower", api.Resources{}, res(150, 64))
	h.expect()
	h.clock.Step(pool.LeaseTTL - time.Millisecond) // no heartbeat, and nobody renews
	h.expect("donor 350m/256Mi")                   // nothing is recorded for the borrower without the agent's word
	h.kubelet()
	h.clock.Step(2 * time.Millisecond)
	h.expect() // the borrower may have been given more than the spec says
	got := h.follow(2 * nudgeDue)
	slices.Sort(got[1:]) // they are sent together
	if want := []string{"borrower 501m/320Mi", "borrower 500m/256Mi", "donor 500m/256Mi"}; !slices.Equal(got, want) {
		t.Errorf("patches %v, want %v", got, want)
	}
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
