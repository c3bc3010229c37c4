package controller

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/resizer/backoff"
)

// Waiter waits for changes of one node's balances.
type Waiter interface {
	// Wait returns nil when balances may have changed since it last returned.
	Wait(ctx context.Context) error
}

// waker enqueues a node when its balances change. It is a source of the
// controller, so that it lives as long as the controller's queue.
type waker struct {
	clock   clock.Clock
	waiters func(node string) Waiter
	metrics *metrics

	mu      sync.Mutex
	ctx     context.Context // nil until started
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	cancels map[string]context.CancelFunc
}

func newWaker(clk clock.Clock, waiters func(node string) Waiter, m *metrics) *waker {
	return &waker{clock: clk, waiters: waiters, metrics: m, cancels: map[string]context.CancelFunc{}}
}

// Start implements source.Source.
func (w *waker) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx, w.queue = ctx, queue
	return nil
}

// follow begins to wake a node, if it has not begun.
func (w *waker) follow(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.cancels[node]; ok || w.ctx == nil || w.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.cancels[node] = cancel
	go w.run(ctx, node)
}

// wakeAll wakes every node that is followed.
func (w *waker) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range w.cancels {
		w.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
	}
}

// leave stops waking a node.
func (w *waker) leave(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel, ok := w.cancels[node]; ok {
		cancel()
		delete(w.cancels, node)
	}
}

func (w *waker) run(ctx context.Context, node string) {
	log := logf.FromContext(ctx).WithValues("node", node)
	waiter := w.waiters(node)
	retry := backoff.Delay{Min: backoff.Min, Max: backOffMax}
	for {
		err := waiter.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if retry.Failing() {
				log.Info("balances can be waited for again")
			}
			retry.Reset()
			w.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
			continue
		}
		w.metrics.poolFailed(ctx, "wait")
		if retry.Failing() {
			log.V(1).Info("waiting for balances to change failed again", "error", err.Error())
		} else {
			log.Error(err, "waiting for balances to change; the tick goes on meanwhile")
		}
		delay := retry.Next()
		backoff.Pause(ctx, w.clock, delay)
	}
}
