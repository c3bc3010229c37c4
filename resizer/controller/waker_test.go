package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"go.opentelemetry.io/otel/metric/noop"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// scriptedWaiter returns what is sent to it, and the context's error at its end.
type scriptedWaiter struct {
	answers chan error
	ended   chan struct{}
}

func (s *scriptedWaiter) Wait(ctx context.Context) error {
	select {
	case err := <-s.answers:
		return err
	case <-ctx.Done():
		close(s.ended)
		return ctx.Err()
	}
}

func TestWaker(t *testing.T) {
	m, err := newMetrics(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	script := &scriptedWaiter{answers: make(chan error), ended: make(chan struct{})}
	asked := make(chan string, 10)
	w := newWaker(clock.RealClock{}, func(node string) Waiter { asked <- node; return script }, m)

	w.follow("n1") // before the start: nobody to wake
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	lines := make(chan string, 10)
	ctx := logf.IntoContext(t.Context(), funcr.New(func(_, args string) { lines <- args }, funcr.Options{}))
	if err := w.Start(ctx, queue); err != nil {
		t.Fatal(err)
	}
	w.follow("n1")
	w.follow("n1")
	if got := <-asked; got != "n1" {
		t.Errorf("waiter made for %q, want n1", got)
	}

	woken := func() {
		t.Helper()
		got, _ := queue.Get()
		if got.Name != "n1" {
			t.Errorf("woke %q, want n1", got.Name)
		}
		queue.Done(got)
	}
	script.answers <- nil
	woken()
	script.answers <- errors.New("away")
	script.answers <- errors.New("away")
	script.answers <- nil // goes on after errors
	woken()
	if len(lines) != 2 {
		t.Errorf("logged %d lines, want that Redis was lost and that it is back", len(lines))
	}

	w.leave("n1")
	w.leave("n1")
	select {
	case <-script.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("still waiting for a node that was left")
	}
	if len(asked) != 0 {
		t.Errorf("a second waiter was made for a node that has one")
	}
}
