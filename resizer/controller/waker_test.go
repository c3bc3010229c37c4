package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type heard struct {
	node string
	err  error
}

// scriptedFollower returns what is sent to it, and the context's error at its end.
type scriptedFollower chan heard

func (s scriptedFollower) Next(ctx context.Context) (string, error) {
	select {
	case h := <-s:
		return h.node, h.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func TestWaker(t *testing.T) {
	script := make(scriptedFollower)
	c := newHarness(t).Controller
	c.clock, c.follower = clock.RealClock{}, script
	c.node("n1")
	c.wakeAll() // before the start: nobody to wake

	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	lines := make(chan string, 10)
	ctx := logf.IntoContext(t.Context(), funcr.New(func(_, args string) { lines <- args }, funcr.Options{}))
	if err := c.awaken(ctx, queue); err != nil {
		t.Fatal(err)
	}
	c.node("n2")
	c.forget(c.node("n3"))
	woken := func(want ...string) {
		t.Helper()
		nodes := map[string]bool{}
		for range want {
			got, _ := queue.Get()
			nodes[got.Name] = true
			queue.Done(got)
		}
		for _, node := range want {
			if !nodes[node] {
				t.Errorf("woke %v, want %v", nodes, want)
			}
		}
	}
	script <- heard{node: "n1"}
	woken("n1")
	script <- heard{node: "n3"} // which was left
	script <- heard{node: "n2"}
	woken("n2")
	script <- heard{err: errors.New("away")}
	woken("n1", "n2") // to be looked at again and again
	if !c.deaf.Load() {
		t.Error("without a word of changes, nodes are looked at as if there were none")
	}
	script <- heard{err: errors.New("away")}
	script <- heard{} // any may have been missed
	woken("n1", "n2")
	script <- heard{node: "n1"}
	woken("n1")
	if c.deaf.Load() {
		t.Error("nodes are looked at again and again although changes are followed")
	}
	if queue.Len() != 0 {
		t.Errorf("%d nodes were woken beside", queue.Len())
	}
	if len(lines) != 2 {
		t.Errorf("logged %d lines, want that Redis was lost and that it is back", len(lines))
	}
}

// While nobody tells of changes, a container that needs memory must not wait until the node would be looked at anyway.
func TestNodesAreLookedAtOftenWhileChangesAreNotHeard(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	for deaf, want := range map[bool]time.Duration{false: resync, true: tick} {
		h.deaf.Store(deaf)
		if _, again := h.reconcileResult(); again != want {
			t.Errorf("with changes not heard: %v, the node is looked at after %v, want %v", deaf, again, want)
		}
	}
}
