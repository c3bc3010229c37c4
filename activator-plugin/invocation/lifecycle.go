package invocation

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	// Nothing waits for a Begin. On a node whose cores are all busy, Redis takes 5 to 25 ms to
	// answer one. Giving up on it would tell less about the invocation than waiting does.
	beginTimeout = 50 * time.Millisecond
	// While the invocation runs, an unanswered Begin is sent again, with a longer timeout:
	// nothing waits for it, and the loan of a long invocation is worth it.
	retryTimeout = 250 * time.Millisecond
	beginBackoff = 10 * time.Millisecond

	// An End that is not answered within lateAfter is sent again, marked as late.
	lateAfter  = 50 * time.Millisecond
	endBackoff = 100 * time.Millisecond
	maxBackoff = time.Second

	// An End that has been refused for refusedMost is not sent again. Renewals are refused, too,
	// so its lease has expired by then.
	refusedMost = 2 * pool.LeaseTTL

	// maxInFlight bounds the memory for invocations in flight, and for ended ones while Redis is
	// away: 18 KB each while it hangs. maxOfRevision leaves room for other revisions, and maxOfNamespace
	// for other namespaces. Invocations beyond any of these bounds join their pod's crowd.
	maxInFlight    = 4096
	maxOfNamespace = maxInFlight / 2
	maxOfRevision  = 1024
)

// lifecycle reports invocations to the pool: each has one Begin and then one End, both off the
// request path.
type lifecycle struct {
	pool    pool.Pool
	owner   string
	clock   clock.WithTicker
	logger  *zap.SugaredLogger
	metrics *metrics
	tracer  trace.Tracer
	recent  *recent
	// beginTimeout and lateAfter are fields so that tests do not depend on the machine's load.
	beginTimeout, lateAfter time.Duration

	running, renewals sync.WaitGroup
	// giveUp cancels ends. After that no End is tried any more.
	ends     context.Context
	giveUp   context.CancelFunc
	refusals rate.Sometimes

	mu sync.Mutex
	// inFlight counts the invocations from their start until their End is answered. nodes, namespaces and
	// revisions count the same by node, by namespace and by revision.
	inFlight   int
	nodes      map[string]int
	namespaces map[string]int
	revisions  map[types.NamespacedName]int
	// idle says, by node, until when a pod there is an idle donor.
	idle map[string]time.Time
	// started is the Number of the last invocation to start. inPod has, by pod, the Numbers of
	// those in flight, in order.
	started int64
	inPod   map[string][]int64
	// crowds has, by pod, the invocations that are not reported one by one.
	crowds map[string]*crowd
	// lending counts, by pod, the invocations that could lend something.
	lending map[string]int
	// ending has, by pod, the last invocation to finish, until its End is answered.
	ending map[string]*flight
	// unrenewed has the nodes whose last renewal has not been answered, and whether it is still
	// under way.
	unrenewed map[string]bool
	// silent has the nodes whose last renewal failed, and why. away says that this was logged.
	silent map[string]error
	away   bool
	// answered says whether any node was renewed since the outage was last looked at.
	answered bool
	// lingering has, by node, the Ends that wait for a Begin.
	lingering map[string][]*lingering
}

// flight is one invocation in flight.
type flight struct {
	*lifecycle
	rev        types.NamespacedName
	node       string
	inv        pool.Invocation
	dispatched time.Time
	// withheld is what the mode or the source kept from the pool. besideUntold says that others that were not
	// reported to the pool were in the pod, or may have been. Both are set before finish.
	withheld     volumes
	besideUntold bool
	// promised is the milli CPU that its pod was chosen for. It is set before finish.
	promised int64
	// quick says that most invocations like it are not reported. It is set before finish.
	quick bool
	// granted is what the pool had for it when it began. begun says that the pool has answered.
	granted api.Resources
	begun   bool
	// noted is the number of its request in recent. It is set before finish.
	noted int64
	// abandoned says that its pod may go on computing for it. It is set before finish.
	abandoned bool
	// awaited says that a Begin in its pod waits for its End. mu guards it.
	awaited bool

	// finished carries the Ending, once. answered is closed when the pool has answered, or is
	// not asked any more.
	finished chan pool.Ending
	answered chan struct{}
}

func newLifecycle(p pool.Pool, owner string, clk clock.WithTicker, logger *zap.SugaredLogger, m *metrics) *lifecycle {
	ends, giveUp := context.WithCancel(context.Background())
	return &lifecycle{
		pool:    p,
		owner:   owner,
		clock:   clk,
		logger:  logger,
		metrics: m,
		tracer:  newTracer(nil),

		beginTimeout: beginTimeout,
		lateAfter:    lateAfter,

		ends:   ends,
		giveUp: giveUp,

		refusals: rate.Sometimes{Interval: time.Minute},

		nodes:      make(map[string]int),
		idle:       make(map[string]time.Time),
		inPod:      make(map[string][]int64),
		unrenewed:  make(map[string]bool),
		silent:     make(map[string]error),
		namespaces: make(map[string]int),
		revisions:  make(map[types.NamespacedName]int),
		crowds:     make(map[string]*crowd),
		lending:    make(map[string]int),
		ending:     make(map[string]*flight),
		lingering:  make(map[string][]*lingering),
	}
}

// start begins the invocation and returns at once. The caller must call finish exactly once.
// start returns nil when too many are in flight.
func (l *lifecycle) start(rev types.NamespacedName, node string, inv pool.Invocation) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight >= maxInFlight || l.namespaces[rev.Namespace] >= maxOfNamespace || l.revisions[rev] >= maxOfRevision {
		return nil
	}
	return l.startAnyway(rev, node, inv)
}

// startAnyway is start without the bounds. The caller must hold mu.
func (l *lifecycle) startAnyway(rev types.NamespacedName, node string, inv pool.Invocation) *flight {
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

	l.inFlight++
	l.nodes[node]++
	l.namespaces[rev.Namespace]++
	l.revisions[rev]++
	l.started++
	f.inv.Number = l.started
	l.inPod[f.inv.Pod] = append(l.inPod[f.inv.Pod], l.started)
	if !f.inv.Surplus.IsZero() {
		l.lending[f.inv.Pod]++
	}
	var before <-chan struct{}
	if last := l.ending[f.inv.Pod]; last != nil {
		before, last.awaited = last.answered, true
	}

	l.metrics.onInFlight(1)
	l.running.Go(func() {
		begun, ending := f.begin(before)
		if f.begun {
			f.recent.begun(f.noted, f.granted)
		}
		f.metrics.onVolumes(rev, volumes{inv.Surplus, inv.Want}, false, ending.Duration)
		f.metrics.onVolumes(rev, f.withheld, true, ending.Duration)
		f.metrics.onPromise(f.promised, f.granted.CPUMilli, inv.Duration)
		if begun || ending.ComputesIn != "" {
			f.end(ending)
		} else if before != nil {
			// A Begin that waits for this invocation has to wait for the End before it.
			select {
			case <-before:
			case <-f.ends.Done():
			}
		}
		f.forget()
	})
	return f
}

// lends reports whether the pool may have something that an invocation in the pod could lend,
// which it may until it has answered the invocation's End.
func (l *lifecycle) lends(pod string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lending[pod] > 0
}

// finish ends the invocation and returns at once.
func (f *flight) finish(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finishNow(status)
}

// finishNow is finish for a caller that holds mu.
func (f *flight) finishNow(status int) {
	// From here on, the pod's next invocation waits for this one's End.
	f.ending[f.inv.Pod] = f
	ending := pool.Ending{ID: f.inv.ID, Duration: f.clock.Since(f.dispatched), Status: status, Late: f.besideUntold}
	if f.abandoned {
		ending.ComputesIn = f.inv.Pod
	}
	f.finished <- ending // it has room for one
}

// begin sends the Begin until the pool answers or refuses it, or the invocation is over, and
// returns when the invocation is over. sent reports whether a Begin was sent and not refused,
// answered or not.
func (f *flight) begin(before <-chan struct{}) (sent bool, ending pool.Ending) {
	timeout, backoff := f.beginTimeout, beginBackoff
	again := false
	for {
		err := f.tryBegin(before, again, timeout)
		refused := pool.Refused(err)
		sent = sent || !refused && !errors.Is(err, errNotSent)
		if err == nil {
			break
		}
		var retry <-chan time.Time
		if !refused {
			retry = f.clock.After(backoff)
		}
		select {
		case <-retry:
		case ending = <-f.finished:
			ending.Late = ending.Late || again
			return sent, ending
		}
		again = true
		timeout, backoff = retryTimeout, min(2*backoff, maxBackoff)
	}
	ending = <-f.finished
	// The pool may have missed what else was in the pod before it heard of this invocation.
	ending.Late = ending.Late || again
	ending.BeginAnswered = !again
	return sent, ending
}

// after returns the invocation as it is when it has run for a while: its predicted end does not depend on when the pool
// hears of it.
func after(inv pool.Invocation, ran time.Duration) pool.Invocation {
	inv.Duration, inv.WithoutLoan = max(0, inv.Duration-ran), max(0, inv.WithoutLoan-ran)
	if inv.WithoutLoan < inv.MinRemaining {
		inv.Want.CPUMilli = 0 // it cannot do without the memory
	}
	if inv.Duration < inv.MinRemaining && inv.Concurrency <= 1 {
		inv.Surplus = api.Resources{} // otherwise its pod may have others that last
	}
	return inv
}

// tryBegin sends a Begin after the End of the invocation that was in the pod before. If the
// Begin came first, the pool would see two at a time, lend nothing, and count neither as alone
// in its pod.
func (f *flight) tryBegin(before <-chan struct{}, again bool, timeout time.Duration) error {
	span := f.span(spanBegin)
	defer span.End()
	along, first := f.takeAlong(f.node, before)
	if !first {
		started, waits := f.clock.Now(), time.NewTimer(timeout)
		defer waits.Stop()
		select {
		case <-before:
		case <-waits.C:
			addError(span, errNotSent)
			f.metrics.onPoolCall(opBegin, resultNotSent, f.clock.Since(started))
			return errNotSent
		}
		along, _ = f.takeAlong(f.node, nil)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	started := f.clock.Now()
	inv := f.inv
	if again || !first {
		inv = after(inv, f.clock.Since(f.dispatched))
	}
	inv.Trace = api.Traceparent(span.SpanContext())
	inv.Others += f.others(along)
	borrowed, err := f.callBegin(ctx, inv, along)
	addVolume(span, "libra.surplus", inv.Surplus)
	addVolume(span, "libra.want", inv.Want)
	addVolume(span, "libra.borrowed", borrowed)
	addRank(span, inv)
	addError(span, err)
	f.onCall(opBegin, err, f.clock.Since(started))
	f.granted, f.begun = borrowed, err == nil
	if err != nil {
		f.log("Failed to begin an invocation in the pool; it runs with its user allocation until the pool knows of it", err)
	}
	return err
}

// others returns how many in flight began in the pod earlier, except those whose End goes along
// with the Begin. It counts those that the pool has lost and those whose Begin is to be retried.
func (f *flight) others(along []*lingering) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, _ := slices.BinarySearch(f.inPod[f.inv.Pod], f.inv.Number)
	for _, end := range along {
		if end.flight.inv.Pod == f.inv.Pod && end.flight.inv.Number < f.inv.Number {
			n--
		}
	}
	return n
}

// end sends the End until the pool answers, or has refused it for refusedMost. The pool does not
// end an invocation by itself while this activator has others on the node and renews its lease.
func (f *flight) end(e pool.Ending) {
	timeout, backoff := f.lateAfter, endBackoff
	if f.mayLinger() {
		ended, sent := f.linger(&e)
		if ended {
			return
		}
		if sent {
			e.Late, timeout = true, retryTimeout
		}
	}
	var refusedSince time.Time
	for {
		err := f.tryEnd(e, timeout)
		switch {
		case err == nil:
			return
		case !pool.Refused(err):
			refusedSince = time.Time{}
		case refusedSince.IsZero():
			refusedSince = f.clock.Now()
		case f.clock.Since(refusedSince) >= refusedMost:
			return
		}
		select {
		case <-f.clock.After(backoff):
		case <-f.ends.Done():
			return
		}
		e.Late = true
		timeout, backoff = retryTimeout, min(2*backoff, maxBackoff)
	}
}

func (f *flight) tryEnd(e pool.Ending, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(f.ends, timeout)
	defer cancel()
	span := f.span(spanEnd)
	defer span.End()
	started := f.clock.Now()
	outcome, err := f.pool.End(ctx, f.node, e)
	f.onEnd(span, outcome, err, f.clock.Since(started))
	return err
}

// onEnd records the result of a call that sent the End, and reports whether the pool answered.
func (f *flight) onEnd(span trace.Span, outcome pool.Outcome, err error, took time.Duration) (answered bool) {
	addVolume(span, "libra.lent", outcome.Lent)
	addVolume(span, "libra.borrowed", outcome.Borrowed)
	addError(span, err)
	f.onCall(opEnd, err, took)
	if err != nil {
		f.log("Failed to end an invocation; it ends in the pool with a retry, or when its lease expires", err)
		return false
	}
	f.metrics.onEnded(f.rev, outcome)
	f.recent.ended(f.noted, outcome)
	return true
}

func (f *flight) forget() {
	f.mu.Lock()
	f.inFlight--
	here := f.inPod[f.inv.Pod]
	if i, _ := slices.BinarySearch(here, f.inv.Number); len(here) == 1 {
		delete(f.inPod, f.inv.Pod)
	} else {
		f.inPod[f.inv.Pod] = slices.Delete(here, i, i+1)
	}
	if f.nodes[f.node]--; f.nodes[f.node] == 0 {
		delete(f.nodes, f.node)
	}
	if f.inv.IdleCPUMilli > 0 {
		f.idle[f.node] = f.clock.Now().Add(pool.IdleMost)
	}
	if f.namespaces[f.rev.Namespace]--; f.namespaces[f.rev.Namespace] == 0 {
		delete(f.namespaces, f.rev.Namespace)
	}
	if f.revisions[f.rev]--; f.revisions[f.rev] == 0 {
		delete(f.revisions, f.rev)
	}
	if !f.inv.Surplus.IsZero() {
		if f.lending[f.inv.Pod]--; f.lending[f.inv.Pod] == 0 {
			delete(f.lending, f.inv.Pod)
		}
	}
	if f.ending[f.inv.Pod] == f {
		delete(f.ending, f.inv.Pod)
	}
	f.forgetCrowd(f)
	f.mu.Unlock()
	close(f.answered) // a Begin that waits for this counts the others next
	f.metrics.onInFlight(-1)
}

func (f *flight) log(msg string, err error) {
	f.logger.Debugw(msg, "invocation", f.inv.ID, "function", f.inv.Function,
		"pod", f.inv.Pod, "node", f.node, zap.Error(err))
}

// onCall records a call to the pool, and logs refusals once a minute.
func (l *lifecycle) onCall(operation string, err error, took time.Duration) {
	result := resultOf(err)
	l.metrics.onPoolCall(operation, result, took)
	if result == resultRefused {
		l.refusals.Do(func() {
			l.logger.Errorw("Redis refuses the activator's calls, or cannot be asked; requests run with their user allocation until this is fixed. "+
				"Redis must be version 7 or later, accept the activator's user and password, and let that user call functions. The activator "+
				"must be able to read its credential files, and trust Redis' certificate. This is logged once a minute.", zap.Error(err))
		})
	}
}

// drain waits until all invocations have ended or ctx is done. It leaves the rest to the lease,
// which expires. No invocation may be started any more.
func (l *lifecycle) drain(ctx context.Context) error {
	defer l.giveUp()
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
