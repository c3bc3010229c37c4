package invocation

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/pool"
)

const (
	beginTimeout = 5 * time.Millisecond
	endTimeout   = 250 * time.Millisecond
	// All of an End's attempts fit in a lease; after that the pool ends it.
	endAttempts = 3
	endBackoff  = 100 * time.Millisecond

	// maxInFlight bounds what is kept for invocations in flight, and for ended ones
	// while Redis is away. An invocation beyond it is not managed.
	maxInFlight = 4096
)

// lifecycle tells the pool of invocations: one Begin each, and after it one End,
// both off the request path.
type lifecycle struct {
	pool    pool.Pool
	owner   string
	clock   clock.WithTicker
	logger  *zap.SugaredLogger
	metrics *metrics
	// beginTimeout is a field for tests, which must not depend on how busy a
	// machine is.
	beginTimeout time.Duration

	running sync.WaitGroup
	failing atomic.Bool // whether the pool's last answer was an error

	mu sync.Mutex
	// inFlight holds the IDs of the invocations between start and the answer to
	// their End, nodes how many of them are on a node.
	inFlight map[string]struct{}
	nodes    map[string]int
	// ending has, by pod, what the last End under way closes when it is answered.
	ending map[string]chan struct{}
}

// flight is one invocation in flight.
type flight struct {
	*lifecycle
	rev        types.NamespacedName
	node       string
	inv        pool.Invocation
	dispatched time.Time

	// finished carries the Ending once; answered is closed after the pool's answer.
	finished chan pool.Ending
	answered chan struct{}
}

func newLifecycle(p pool.Pool, owner string, clk clock.WithTicker, logger *zap.SugaredLogger, m *metrics) *lifecycle {
	return &lifecycle{
		pool:    p,
		owner:   owner,
		clock:   clk,
		logger:  logger,
		metrics: m,

		beginTimeout: beginTimeout,

		inFlight: make(map[string]struct{}),
		nodes:    make(map[string]int),
		ending:   make(map[string]chan struct{}),
	}
}

// start begins the invocation and returns at once. The caller must finish it,
// exactly once. It is nil when too many are in flight.
func (l *lifecycle) start(rev types.NamespacedName, node string, inv pool.Invocation) *flight {
	f := &flight{
		lifecycle:  l,
		rev:        rev,
		node:       node,
		inv:        inv,
		dispatched: l.clock.Now(),
		finished:   make(chan pool.Ending, 1),
		answered:   make(chan struct{}),
	}
	f.inv.Owner = l.owner

	l.mu.Lock()
	if len(l.inFlight) >= maxInFlight {
		l.mu.Unlock()
		return nil
	}
	// Clients, and proxies that retry, send an ID more than once.
	if _, taken := l.inFlight[f.inv.ID]; taken {
		f.inv.ID += "." + rand.String(idSuffixLength)
	}
	l.inFlight[f.inv.ID] = struct{}{}
	l.nodes[node]++
	before := l.ending[f.inv.Pod]
	l.mu.Unlock()

	l.metrics.onInFlight(1)
	ctx, cancel := context.WithTimeout(context.Background(), l.beginTimeout)
	l.running.Go(func() {
		begun := f.begin(ctx, before)
		cancel()
		ending := <-f.finished
		if begun {
			f.end(ending)
		}
		f.forget()
	})
	return f
}

// finish ends the invocation and returns at once.
func (f *flight) finish(status int) {
	// From here on, the pod's next invocation waits for this one's End.
	f.mu.Lock()
	f.ending[f.inv.Pod] = f.answered
	f.mu.Unlock()
	f.finished <- pool.Ending{ID: f.inv.ID, Duration: f.clock.Since(f.dispatched), Status: status}
}

// begin says whether a Begin was sent, answered or not. It goes after the End of
// the invocation that was in the pod before: were it first, the pool would see two
// at a time, lend nothing, and count neither as alone in its pod.
func (f *flight) begin(ctx context.Context, before <-chan struct{}) bool {
	if before != nil {
		select {
		case <-before:
		case <-ctx.Done():
			f.metrics.onPoolCall(opBegin, resultNotSent, f.clock.Since(f.dispatched))
			return false
		}
	}
	_, err := f.pool.Begin(ctx, f.node, f.inv)
	f.metrics.onPoolCall(opBegin, resultOf(err), f.clock.Since(f.dispatched))
	if err != nil {
		f.log("Failed to begin an invocation; it runs with its user allocation", err)
	}
	return true
}

func (f *flight) end(e pool.Ending) {
	var errs []error
	for attempt := range endAttempts {
		if attempt > 0 {
			<-f.clock.After(endBackoff << (2 * (attempt - 1)))
		}
		started := f.clock.Now()
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		outcome, err := f.pool.End(ctx, f.node, e)
		cancel()
		f.metrics.onPoolCall(opEnd, resultOf(err), f.clock.Since(started))
		if err == nil {
			f.metrics.onEnded(f.rev, outcome)
			f.noteHealth(nil)
			return
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	f.noteHealth(err)
	f.log("Failed to end an invocation; the pool ends it when it is not renewed", err)
}

func (f *flight) forget() {
	close(f.answered)
	f.mu.Lock()
	delete(f.inFlight, f.inv.ID)
	if f.nodes[f.node]--; f.nodes[f.node] == 0 {
		delete(f.nodes, f.node)
	}
	if f.ending[f.inv.Pod] == f.answered {
		delete(f.ending, f.inv.Pod)
	}
	f.mu.Unlock()
	f.metrics.onInFlight(-1)
}

func (f *flight) log(msg string, err error) {
	f.logger.Debugw(msg, "invocation", f.inv.ID, "function", f.inv.Function,
		"pod", f.inv.Pod, "node", f.node, zap.Error(err))
}

// noteHealth logs when the pool goes away and when it is back. A Begin is no sign of
// either: its deadline is so short that a busy machine misses it.
func (l *lifecycle) noteHealth(err error) {
	switch failing := err != nil; {
	case l.failing.Swap(failing) == failing:
	case failing:
		l.logger.Warnw("The pool does not answer; requests run with their user allocation until it does", zap.Error(err))
	default:
		l.logger.Info("The pool answers again")
	}
}

// drain waits until all are ended, at most until ctx is done. None may be started
// any more.
func (l *lifecycle) drain(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		l.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
