package controller

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/resizer/backoff"
)

// Follower hears where memory is another: a *pool.MemoryFollower is one.
type Follower interface {
	// Next waits for the next change and returns its node, or an empty name when that may be
	// any.
	Next(ctx context.Context) (node string, err error)
}

// waker enqueues a node when what its pods borrow or need of memory is another, and all nodes
// when the settings are. It is a source of the controller, so that it lives as long as the
// controller's queue.
type waker struct {
	clock    clock.Clock
	follower Follower
	metrics  *metrics

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until started
	nodes map[string]struct{}                                     // with pods that opted in
}

func newWaker(clk clock.Clock, follower Follower, m *metrics) *waker {
	return &waker{clock: clk, follower: follower, metrics: m, nodes: map[string]struct{}{}}
}

// Start implements source.Source.
func (w *waker) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	go w.run(ctx)
	return nil
}

// follow has a node woken from now on.
func (w *waker) follow(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes[node] = struct{}{}
}

// leave has a node woken no more.
func (w *waker) leave(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.nodes, node)
}

// wakeAll wakes every node that is followed.
func (w *waker) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue == nil {
		return // all are looked at when it starts
	}
	for node := range w.nodes {
		w.queue.Add(requestOf(node))
	}
}

func (w *waker) wake(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.nodes[node]; ok {
		w.queue.Add(requestOf(node))
	}
}

func (w *waker) run(ctx context.Context) {
	log := logf.FromContext(ctx)
	retry := backoff.Delay{Min: backoff.Min, Max: backOffMax}
	for {
		node, err := w.follower.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			w.metrics.poolFailed(ctx, "follow")
			if retry.Failing() {
				log.V(1).Info("waiting for memory to be lent failed again", "error", err.Error())
			} else {
				log.Error(err, "waiting for memory to be lent; nodes are looked at now and then meanwhile", "every", resync)
			}
			backoff.Pause(ctx, w.clock, retry.Next())
			continue
		case node == "":
			if retry.Failing() {
				log.Info("memory that is lent can be waited for again")
			}
			w.wakeAll()
		default:
			w.wake(node)
		}
		retry.Reset()
	}
}
