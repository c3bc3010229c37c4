package agent

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

const (
	poolTimeout = time.Second
	// readEvery is how often the state is read though nothing woke the agent. The reading shows that
	// Redis is there, which leases have run out, and what the agent did not hear of.
	readEvery = time.Second
	// readGap is the least time between two readings of the state: one reading covers everything
	// that woke the agent meanwhile.
	readGap = 2 * time.Millisecond
)

// Pool is the part of the pool that the agent needs.
type Pool interface {
	Read(ctx context.Context, node string) (pool.State, error)
	Heartbeat(ctx context.Context, node string, hb pool.Heartbeat) (open bool, err error)
	Safeguard(ctx context.Context, node, pod string, idle bool) (revokedMilli int64, err error)
	Ask(ctx context.Context, node, pod string, milli int64) error
}

// news is a state and the time at which it was asked for.
type news struct {
	state pool.State
	asked time.Time
}

// link talks to the pool for the reflex, which never waits for Redis: a Redis that hangs must not
// keep a donor from getting its CPU back.
type link struct {
	clock   clock.WithTicker
	pool    Pool
	node    string
	metrics *metrics
	// Only run uses these: when the state was last read, and whether the last heartbeat was not heard.
	readAt  time.Time
	unheard bool

	woken  chan struct{}       // like all channels here, of capacity 1: the latest counts
	beats  chan pool.Heartbeat // to send
	states chan news           // for the reflex

	// strikes make the pool revoke what donors lend of their CPU. Each says whether the donor was idle
	// when its use was seen.
	strikes *pending[bool]
	// asks ask the pool to lend containers so many milli CPU, if it can. A container that still wants
	// it asks again.
	asks *pending[int64]
}

func newLink(clk clock.WithTicker, p Pool, node string, m *metrics) *link {
	return &link{
		clock: clk, pool: p, node: node, metrics: m,
		woken:   make(chan struct{}, 1),
		beats:   make(chan pool.Heartbeat, 1),
		states:  make(chan news, 1),
		strikes: newPending[bool](),
		asks:    newPending[int64](),
	}
}

// latest puts v into a channel of capacity 1, replacing a value that nobody has read yet. The
// caller must be the channel's only writer.
func latest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run makes the calls, one at a time. Those that revoke loans come first.
func (l *link) run(ctx context.Context) {
	ticker := l.clock.NewTicker(readEvery)
	defer ticker.Stop()
	log := logf.FromContext(ctx)
	retry := backoff.Delay{Min: backoff.Min, Max: backOffMax}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.strikes.some:
		case <-l.woken:
			if gap := readGap - l.clock.Since(l.readAt); gap > 0 {
				backoff.Pause(ctx, l.clock, gap)
				select {
				case <-l.woken: // the reading that follows covers it
				default:
				}
			}
		case <-ticker.C():
		case hb := <-l.beats:
			l.beat(ctx, hb)
			continue
		case <-l.asks.some:
			l.sendAsks(ctx)
			continue
		}
		err := l.revoke(ctx)
		if err == nil {
			err = l.read(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		switch failing := retry.Failing(); {
		case err == nil && failing:
			log.Info("the pool answers again")
		case err != nil && !failing:
			log.Error(err, "could not call the pool; if it does not answer for the length of a lease, every container gets back what it is owed", "lease", pool.LeaseTTL)
		}
		if err == nil {
			retry.Reset()
			continue
		}
		backoff.Pause(ctx, l.clock, retry.Next())
		signal(l.woken)
	}
}

func (l *link) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	asked := l.clock.Now()
	l.readAt = asked
	state, err := l.pool.Read(ctx, l.node)
	if err != nil {
		l.metrics.redisFailed(ctx, "read")
		return err
	}
	latest(l.states, news{state, asked})
	return nil
}

// revoke makes the pool revoke the loans of all donors that the safeguard restored. After one
// failure the next call would only wait as long again: what was not revoked stays pending.
func (l *link) revoke(ctx context.Context) (failed error) {
	for pod, idle := range l.strikes.take() {
		if failed == nil {
			callCtx, cancel := context.WithTimeout(ctx, poolTimeout)
			_, failed = l.pool.Safeguard(callCtx, l.node, pod, idle)
			cancel()
			if failed == nil {
				continue
			}
			l.metrics.redisFailed(ctx, "safeguard")
		}
		l.strikes.putBack(pod, idle)
	}
	return failed
}

// sendAsks stops at the first failure, because the other calls would only wait as long again, and
// for a strike, because no donor may wait for asks.
func (l *link) sendAsks(ctx context.Context) {
	for pod, milli := range l.asks.take() {
		if len(l.strikes.some) > 0 {
			return
		}
		callCtx, cancel := context.WithTimeout(ctx, poolTimeout)
		err := l.pool.Ask(callCtx, l.node, pod, milli)
		cancel()
		if err != nil {
			l.metrics.redisFailed(ctx, "ask")
			return
		}
	}
}

func (l *link) beat(ctx context.Context, hb pool.Heartbeat) {
	callCtx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	open, err := l.pool.Heartbeat(callCtx, l.node, hb)
	if err != nil && ctx.Err() == nil {
		l.metrics.redisFailed(ctx, "heartbeat")
		if !l.unheard {
			logf.FromContext(ctx).Error(err, "could not send a heartbeat; trying again once a second")
		}
	}
	l.unheard = err != nil
	l.metrics.opened(ctx, open && err == nil)
}

// pending holds the latest value to call the pool with for each pod. The number of
// pods bounds it.
type pending[T any] struct {
	some chan struct{} // of capacity 1: something is pending

	mu    sync.Mutex
	byPod map[string]T
}

func newPending[T any]() *pending[T] {
	return &pending[T]{some: make(chan struct{}, 1), byPod: map[string]T{}}
}

func (p *pending[T]) put(pod string, v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byPod[pod] = v
	signal(p.some)
}

// putBack is put for a value that was taken: a later one stays.
func (p *pending[T]) putBack(pod string, v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, later := p.byPod[pod]; !later {
		p.byPod[pod] = v
	}
	signal(p.some)
}

func (p *pending[T]) drop(pod string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byPod, pod)
}

func (p *pending[T]) take() map[string]T {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.byPod
	p.byPod = map[string]T{}
	return taken
}
