package agent

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/report"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// revokeTime is how long a borrower may keep what its donor has back already, while the agent
	// asks the pool which loans that ends. After that the borrower is shrunk anyway.
	revokeTime = 25 * time.Millisecond
	// Beyond these times, the exception that the safeguard makes is a violation.
	exceedTime = 50 * time.Millisecond
	heldTime   = 50 * time.Millisecond

	// unclaimedTime is how long a container that the journal names at the start waits for
	// the cluster to name its pod.
	unclaimedTime = 30 * time.Second

	// A round plans and writes at most passes times, because each pass may depend on the writes of
	// the one before.
	passes = 4
)

// reflex keeps the limits in the node's cgroups at what the pool's state says. It is one
// goroutine, and waits for nobody: the link talks to Redis, and the Tracker to the cluster.
type reflex struct {
	clock    clock.WithTicker
	log      logr.Logger
	metrics  *metrics
	tally    *report.Tally
	tracer   trace.Tracer
	settings Settings
	agent    string // incarnation
	open     func(containerID string) (cgroup.Container, error)
	openPod  func(dir string) (cgroup.PodWeight, error)
	pods     *podInfos
	sampled  *containers
	link     *link
	journal  *journal
	roundAt  atomic.Pointer[time.Time]
	began    atomic.Bool      // there was a round
	entries  []*entry         // by pod
	most     map[string]int64 // by function: the most bytes of memory that it was seen to use
	// aboveMemory is how many bytes limits are, or are to be, above what is owed.
	aboveMemory int64
	state       pool.State
	asked       time.Time // when the state was asked for; zero before the first
	learnedAt   time.Time // when it was learned
	poolClock   poolClock
	revokedBy   time.Time // until when borrowers are forgiven
	stopping    bool
	lost        bool // the state is too old to count
	// heardSince is when lost last changed.
	heardSince time.Time

	accountedAt time.Time
	sums        sums // as read at accountedAt
	exceeding   exceeding

	heard       chan heard    // invocations that began and ended
	awake       chan struct{} // of capacity 1: a container has ended a rest
	crowded     chan struct{} // of capacity 1: a container has come near its memory limit
	reweigh     bool          // flights have changed: weights are due at once
	ended       bool          // flights have ended: weights are due in the next round
	weighAt     time.Time     // when weights are due; zero while all are the kubelet's
	begun       []time.Time   // when flights began for which no weight was written yet
	weightDebts []weightDebt  // of pods without an entry that owes it
	sharesWrong map[group]exceeding
	clamps      *clamps
	repeats     repeats
	// cappedBefore is the slice that capped returned last. It is reused, since nobody keeps it.
	cappedBefore []capped

	beatDue  bool // something changed that the pool must know
	beatAt   time.Time
	cpuTimes cpuTimes
	lendCPU  int64 // milli CPU, as measured at the last beat on time
	// capacity and idle are the node's; zero where not known. CPU is as of the last beat on time.
	capacity, idle api.Resources
}

// exceeding says since when something has been wrong that may be so for a moment.
type exceeding struct {
	since   time.Time // zero while it is not
	counted time.Time // when it was last; zero before the first time
}

// countEvery is how often what stays wrong is counted, so that an alert on the count ends only when it does.
const countEvery = time.Minute

// count takes in whether it is wrong now. It reports whether that is to be counted: once it has been for longer
// than most, and every countEvery after that.
func (x *exceeding) count(wrong bool, now time.Time, most time.Duration) bool {
	switch {
	case !wrong:
		*x = exceeding{}
	case x.since.IsZero():
		x.since = now
	case now.Sub(x.since) > most && (x.counted.IsZero() || now.Sub(x.counted) >= countEvery):
		x.counted = now
		return true
	}
	return false
}

// run works until ctx ends. It leaves what it changed as it is: stop gives that back.
func (r *reflex) run(ctx context.Context) {
	r.log = logf.FromContext(ctx)
	if r.settings.Unguarded {
		r.log.Info("the safeguard is off, which is for experiments: a donor that needs more than it kept waits until its loan ends")
	}
	if r.settings.Unclamped {
		r.log.Info("the clamp is off, which is for experiments: functions use what they can up to their ceilings, even while other pods wait")
	}
	if r.settings.Unweighted {
		r.log.Info("weights are off, which is for experiments: every pod keeps the weight that the kubelet gave it, whatever is in flight")
	}
	r.recall(ctx)
	timer := r.clock.NewTimer(0)
	defer timer.Stop()
	for {
		var learned time.Time
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		case n := <-r.link.states:
			r.learn(n)
			learned = n.asked
		case h := <-r.heard:
			r.hear(h)
			if !r.reweigh {
				continue
			}
		case <-r.pods.changed:
			r.follow(ctx)
		case <-r.crowded:
			if !slices.ContainsFunc(r.entries, r.isShort) {
				continue
			}
			r.beatDue = true
		case <-r.awake:
			stirred := r.clamps.stir(r.clock.Now())
			if r.wakes() {
				r.reweigh = true
			} else if !stirred {
				continue
			}
		}
		if wrote := r.round(ctx); wrote && !learned.IsZero() {
			r.metrics.wake.Record(ctx, r.clock.Since(learned).Seconds())
		}
		wait := r.untilNext()
		timer.Reset(together(r.clock.Now(), wait))
	}
}

// untilNext returns how long the next round can wait if nothing happens.
func (r *reflex) untilNext() time.Duration {
	now := r.clock.Now()
	if r.reweigh {
		return 0
	}
	wait := min(r.beatAt.Sub(now), r.clamps.untilNext(now))
	if !r.weighAt.IsZero() {
		wait = min(wait, r.weighAt.Sub(now))
	}
	for _, e := range r.entries {
		switch {
		case !e.managed():
		case e.wholeSince.IsZero():
			return max(0, min(wait, r.settings.SampleLowered))
		default:
			wait = min(wait, sampleEvery)
		}
	}
	return max(0, wait)
}

// learn takes in a state.
func (r *reflex) learn(n news) {
	if n.asked.Before(r.asked) {
		return
	}
	if n.state.Epoch != r.state.Epoch {
		r.beatDue, r.poolClock = true, poolClock{}
		for _, e := range r.entries {
			e.whole = false
		}
	}
	now := r.clock.Now()
	r.state, r.asked, r.learnedAt = n.state, n.asked, now
	r.poolClock.read(n.asked, n.state.Now)
	for _, e := range r.entries {
		r.fly(e, now)
		b := r.state.Pods[e.pod]
		if b.Lent.IsZero() && b.Borrowed.IsZero() {
			r.beatDue = r.beatDue || e.replaced // it may take part again
			e.replaced = false
		} else {
			e.trace = b.Trace
		}
		e.held = e.held && b.Lent.CPUMilli > 0 && b.Idle == e.heldIdle
		r.beatDue = r.beatDue || b.Short > 0 && r.isShort(e)
	}
}

// round looks at containers, writes the limits that are due, and says whether it wrote any.
func (r *reflex) round(ctx context.Context) (wrote bool) {
	now := r.clock.Now()
	r.setLost(now)
	beat := !now.Before(r.beatAt)
	for _, e := range slices.Clone(r.entries) {
		e.overwritten = 0
		switch {
		case e.unopened() && !e.ended:
			if beat && r.reopen(e) == nil {
				r.look(ctx, e)
			}
		case e.info.cgroup == nil:
			if !e.present && !now.Before(e.forgetAt) {
				r.drop(e)
			}
		case beat || e.managed() || !e.read || !e.whole || r.concerns(e):
			r.look(ctx, e)
			r.adopt(e)
			r.giveBack(ctx, e)
			r.leaveCPU(e)
		}
	}
	if r.clamps.due(now) {
		r.clamps.round(ctx, r.capped())
	}
	wrote = r.act(ctx)
	r.settle(ctx)
	r.account(ctx)
	r.weigh(ctx, beat)
	r.clamps.join(r.weighAt)
	if (beat || r.beatDue && r.state.Epoch != "" && !r.lost) && !r.stopping {
		r.beat(ctx, beat)
	}
	if beat {
		r.repeats.forget(now)
	}
	done := r.clock.Now()
	r.roundAt.Store(&done)
	r.began.Store(true)
	return wrote
}

// setLost notices when the pool has not answered for the length of a lease, and when it answers
// again.
func (r *reflex) setLost(now time.Time) {
	lost := now.Sub(r.asked) > pool.LeaseTTL
	if lost == r.lost {
		return
	}
	r.lost, r.heardSince = lost, now
	if lost && !r.asked.IsZero() {
		r.log.Info("the pool could not be read for the length of a lease: every container gets back what it is owed", "lease", pool.LeaseTTL)
	}
}

// balance returns the pod's balance in the state, and zero while the state does not count.
func (r *reflex) balance(e *entry) pool.Balance {
	if r.lost || r.stopping {
		return pool.Balance{}
	}
	b := r.state.Pods[e.pod]
	if e.info.node {
		b.Lent.CPUMilli, b.Borrowed.CPUMilli = 0, 0
	}
	return b
}

// leaveCPU leaves a container's CPU limit to others once the node has become the source and no
// loan of it is in force any more.
func (r *reflex) leaveCPU(e *entry) {
	if !e.info.node || e.allocation == 0 || e.debtor != "" && !e.cpuSettled() {
		return
	}
	e.written = 0
	if e.debtor != "" {
		r.journal.forget(e.debtor, limitSuffix)
		e.debtor = ""
	}
	e.owe(0)
	r.clamps.stir(r.clock.Now()) // the clamps have its ceiling from now on
}

// concerns says whether the state has the pod lend or borrow CPU.
func (r *reflex) concerns(e *entry) bool {
	b := r.balance(e)
	return b.Lent.CPUMilli > 0 || b.Borrowed.CPUMilli > 0
}

// adopt makes a container one that the agent manages, when it is to be changed for the first
// time.
func (r *reflex) adopt(e *entry) {
	b := r.balance(e)
	if !e.read || e.debtor != "" {
		return
	}
	e.owe(e.info.allocation.CPUMilli)
	if e.owed == 0 {
		e.differs = false // loans change no limit of it
		return
	}
	due, inForce := e.due(b), e.inForce()
	if differs := inForce != e.owed && (inForce != due || !r.concerns(e)) && !e.bumped(); differs != e.differs {
		e.differs, r.beatDue = differs, true
	}
	if !e.leftAlone() && r.concerns(e) && due != e.owed && e.info.observed == "" {
		r.owe(e)
		r.clamps.stir(r.clock.Now())
	}
}

// settle lets go of containers that are whole and stay so.
func (r *reflex) settle(ctx context.Context) {
	now := r.clock.Now()
	var owing int64
	for _, e := range slices.Clone(r.entries) {
		if !e.managed() || !e.read {
			continue
		}
		owing++
		if e.inForce() != e.owed || e.due(r.balance(e)) != e.owed || e.unsure {
			e.wholeSince = time.Time{}
			continue
		}
		e.left = false
		if e.wholeSince.IsZero() {
			e.wholeSince, e.trace = now, ""
		}
		// While the spec has another limit, the kubelet may still set it.
		specSettled := !e.present || e.info.cgroup.Attainable(e.info.limits.CPUMilli) == e.owed
		if now.Sub(e.wholeSince) < staleWindow && !r.stopping {
			continue
		}
		if !specSettled {
			// A limit of Libra's own is taken back as soon as there is a controller. Until then the next
			// container would start with it, and nobody would know what that container is owed.
			if r.lost || r.stopping || r.concerns(e) || e.info.recorded || now.Sub(e.wholeSince) < specPatience || now.Sub(r.heardSince) < specPatience {
				continue
			}
			r.log.Info("no longer restoring a container although its pod's limits differ from its Revision's: another manager of resources keeps them that way", "pod", e.pod)
		}
		if !e.present {
			r.drop(e)
			continue
		}
		r.journal.forget(e.debtor, limitSuffix)
		e.debtor, e.written = "", 0
	}
	r.metrics.owing.Record(ctx, owing)
}

// stop gives every container what it is owed, tells the pool that nobody takes part
// any more, and closes everything. ctx bounds it.
func (r *reflex) stop(ctx context.Context) {
	r.stopping = true
	r.round(ctx)
	if r.state.Epoch != "" {
		callCtx, cancel := context.WithTimeout(ctx, poolTimeout)
		last := pool.Heartbeat{Agent: r.agent, Epoch: r.state.Epoch}
		if _, err := r.link.pool.Heartbeat(callCtx, r.link.node, last); err != nil {
			r.log.Error(err, "could not tell the pool that the agent stops; the pool closes when a lease has run out")
		}
		cancel()
	}
	for {
		r.round(ctx)
		if !r.weightsOwed() && !slices.ContainsFunc(r.entries, func(e *entry) bool { return e.managed() && e.wholeSince.IsZero() }) {
			break
		}
		if ctx.Err() != nil {
			r.log.Info("stopping before all limits and weights are restored; the next agent of this node restores the rest")
			break
		}
		timer := r.clock.NewTimer(r.settings.SampleLowered)
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
	}
	r.clamps.stop(ctx)
	for _, e := range r.entries {
		e.close()
		if e.weighing.file != nil {
			e.weighing.file.Close() //nolint:errcheck // every write was checked
		}
	}
}
