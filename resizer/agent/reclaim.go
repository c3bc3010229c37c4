package agent

import (
	"context"
	"errors"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/metric"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// reclaimEvery is how often memory is taken, each time from one container.
	reclaimEvery = time.Second

	// A container is idle when no request has been known in it for idleTime, and it has used less than
	// idleUse of CPU in that time, as its probes may.
	idleTime = time.Minute
	idleUse  = idleTime / 1000

	// spareBytes is what a container keeps above its working set. Escra found that much by trial.
	spareBytes = 50 << 20
	// A step is only part of what could be taken: Linux 6.1 takes up to twice what it is asked for. It
	// is also short: while it lasts, the kernel blocks whoever removes the cgroup, and behind them
	// everybody who makes or removes one.
	stepPart  = 8
	stepLeast = 1 << 20
	stepMost  = 16 << 20

	// A container is under pressure when, since the last look at it, it has waited for memory for
	// longer than pressedWait, or has read back more than pressedBytes that had been taken.
	pressedWait  = 10 * time.Millisecond
	pressedBytes = 1 << 20

	// While 1/freePart of the node's memory is free, files may stay in the rest: they harm nobody
	// there.
	freePart = 4
)

// How long a container is left alone that had less to give than it seemed, or is under pressure:
// twice as long each time.
const (
	lessMin, lessMax       = time.Minute, time.Hour
	pressedMin, pressedMax = 10 * time.Minute, 24 * time.Hour
)

// Results of a step.
const (
	reclaimTaken   = "taken"
	reclaimLess    = "less"     // less than half of what was asked for
	reclaimPressed = "pressure" // the step was not made
	reclaimFailed  = "failed"
)

// idling is what is known of a container from which memory may be taken. The zero value is a
// container that was never looked at.
type idling struct {
	since time.Time // since when it is idle
	// at is the start of the present idleTime, and cpu what had been used by then.
	at  time.Time
	cpu time.Duration

	// workingSet is the largest, in bytes, that was seen in this idle period. The current one would
	// shrink with every step, because the kernel then takes rarely used memory for unused memory, and
	// in the end everything would go.
	workingSet int64
	seen       *cgroup.Cache // as read last

	after         time.Time // nothing is taken before
	less, pressed backoff.Delay
	told          bool // the log says that the kernel cannot
}

func newIdling() idling {
	return idling{less: backoff.Delay{Min: lessMin, Max: lessMax}, pressed: backoff.Delay{Min: pressedMin, Max: pressedMax}}
}

// follow takes in since when no request is known in the container, nil when one is, and how much
// CPU it has used so far.
func (i *idling) follow(now time.Time, quiet *time.Time, cpu time.Duration) {
	switch {
	case quiet == nil || quiet.After(i.since) || cpu < i.cpu || cpu-i.cpu >= idleUse:
		i.since, i.workingSet = now, 0
		i.at, i.cpu = now, cpu
	case now.Sub(i.at) >= idleTime:
		i.at, i.cpu = now, cpu
	}
}

// due says whether the container is idle and it is time to look at it.
func (i *idling) due(now time.Time) bool {
	return now.Sub(i.since) >= idleTime && !now.Before(i.after)
}

// reclaimable returns how many bytes to take from a container that was just read; 0 means nothing.
func (i *idling) reclaimable(c cgroup.Cache) int64 {
	could := min(c.Used-max(i.workingSet, c.Used-c.Inactive), c.Inactive-c.Unclean) - spareBytes
	if could < stepLeast*stepPart {
		return 0
	}
	return min(stepMost, could/stepPart)
}

// look takes in a reading and returns how many bytes to take, or that the container is under
// pressure.
func (i *idling) look(now time.Time, c cgroup.Cache) (bytes int64, pressed bool) {
	if !i.due(now) {
		return 0, false
	}
	before := i.seen
	i.seen, i.workingSet = &c, max(i.workingSet, c.Used-c.Inactive)
	switch {
	case before == nil:
		return 0, false // there is nothing yet to compare with
	case c.Waited-before.Waited > pressedWait || c.Refaults-before.Refaults > pressedBytes:
		i.after = now.Add(i.pressed.Next())
		return 0, true
	}
	if bytes = i.reclaimable(c); bytes == 0 {
		i.after = now.Add(idleTime)
	}
	return bytes, false
}

// reclaims says whether it is time to look for memory to take from the container.
func (c *container) reclaims(now time.Time) bool {
	if c.idling.at.IsZero() {
		c.idling = newIdling()
	}
	a := c.active()
	c.idling.follow(now, c.quiet.Load(), a.before+a.used)
	_, fresh := c.lately(now)
	return fresh && !a.busy && c.idling.due(now)
}

// reclaim takes memory from the container, once. It returns how many bytes it took and the result,
// which is empty if it tried nothing.
func (c *container) reclaim(now time.Time) (taken int64, result string, err error) {
	i := &c.idling
	i.after = now // the other containers come first
	defer func() {
		switch result {
		case reclaimTaken:
			i.less.Reset()
		case reclaimLess, reclaimFailed:
			i.after = now.Add(i.less.Next())
		}
	}()
	c.mu.Lock()
	r, err := c.cgroup.Reclaimer()
	c.mu.Unlock()
	if err != nil {
		return 0, reclaimFailed, err
	}
	defer r.Close() //nolint:errcheck // every write was checked
	before, err := r.Read()
	if err != nil {
		return 0, reclaimFailed, err
	}
	step, pressed := i.look(now, before)
	switch {
	case pressed:
		return 0, reclaimPressed, nil
	case step == 0 || c.quiet.Load() == nil: // a request may just have begun
		return 0, "", nil
	}
	// The kernel does not always say that it was less.
	if err := r.Reclaim(step); err != nil && !errors.Is(err, syscall.EAGAIN) {
		return 0, reclaimFailed, err
	}
	after, err := r.Read()
	if err != nil {
		return 0, reclaimFailed, err
	}
	if taken = max(0, before.Used-after.Used); taken < step/2 {
		return taken, reclaimLess, nil
	}
	return taken, reclaimTaken, nil
}

// reclaimAll takes memory from idle containers until ctx ends. It has a goroutine of its own,
// because it blocks while the kernel works.
func (a *Agent) reclaimAll(ctx context.Context) {
	for ctx.Err() == nil {
		a.reclaimOnce(ctx)
		backoff.Pause(ctx, a.clock, together(a.clock.Now(), reclaimEvery))
	}
}

// reclaimOnce takes memory from the container that has waited longest for its turn.
func (a *Agent) reclaimOnce(ctx context.Context) {
	now := a.clock.Now()
	var next sampledPod
	for _, s := range a.containers.all() {
		if s.reclaims(now) && (next.container == nil || s.idling.after.Before(next.idling.after)) {
			next = s
		}
	}
	if next.container == nil {
		return
	}
	taken, result, err := next.reclaim(now)
	log := logf.FromContext(ctx).V(1)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		if !next.idling.told {
			next.idling.told = true
			log.Info("cannot reclaim memory from an idle container", "pod", next.pod, "reason", err.Error())
		}
		return
	case result == "" || cgroup.Gone(err):
		return
	case err != nil:
		log = log.WithValues("reason", err.Error())
	}
	a.metrics.reclaimed.Add(ctx, taken, ofFunction(next.function))
	a.metrics.reclaims.Add(ctx, 1, metric.WithAttributes(resultKey.String(result)))
	log.Info("attempted to reclaim memory from an idle container", "pod", next.pod, "function", next.function, "bytes", taken, "result", result)
}

// setQuiet tells the reclaimer since when no request is known in a container from which memory may
// be taken. Taking memory helps when the node has little left, and where a limit was raised: the
// kubelet counts files when it is about to lower one. Under source owners only requests that borrow
// are known; the others show in the CPU that they use.
func (r *reflex) setQuiet(e *entry, c *container, node nodeMemory) {
	limit := c.memory().limit
	owed, b := e.info.allocation.MemoryBytes, r.balance(e) // nothing is owed in mode observe
	quiet := !r.lost && e.takesPart() && owed > 0 && c.id == e.info.container &&
		len(e.weighing.flights.known) == 0 && b.Borrowed.IsZero() && b.Short == 0 &&
		(limit > owed || node.free < node.total/freePart)
	if !quiet {
		c.quiet.Store(nil)
	} else if c.quiet.Load() == nil {
		now := r.clock.Now()
		c.quiet.Store(&now)
	}
}
