package agent

import (
	"context"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// slack is roughly how long the news of an end takes to arrive here. More of it would count
	// use of the invocation before this one, too.
	slack = 10 * time.Millisecond

	// queueLength is how many observations can wait to be appended. An outage of Redis that
	// lasts longer loses the rest.
	queueLength    = 1024
	observeTimeout = time.Second
)

// Observer takes observations.
type Observer interface {
	Observe(ctx context.Context, o api.Observation) error
}

func (a *Agent) sampleAll(ctx context.Context) {
	timer := a.clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			a.releaseAll(ctx)
			return
		case <-timer.C():
		case <-a.containers.stirred:
		}
		wait := a.sampleDue(ctx)
		timer.Reset(together(a.clock.Now(), wait))
	}
}

// sampleDue samples the containers that are due, and returns how long the next can wait.
// Mostly it finds out whether a container that rested works again, so it wakes up no more
// often than that takes: a wakeup costs as much as reading ten containers.
func (a *Agent) sampleDue(ctx context.Context) time.Duration {
	// From now on a stir may concern a container that was already looked at.
	a.containers.slow.Store(true)
	all := a.containers.all()
	now := a.clock.Now()
	wait := sleepEvery
	for _, c := range all {
		due, until := c.due(now, c.every(now))
		if c.lookAgain.Load() || due {
			a.sample(ctx, c.pod, c.container)
			a.guardMemory(ctx, c)
			until = c.every(now)
		}
		wait = min(wait, until)
	}
	a.containers.slow.Store(wait >= restEvery)
	if len(all) != a.counted {
		a.counted = len(all)
		a.metrics.containers.Record(ctx, int64(len(all)))
	}
	done := a.clock.Now()
	a.sampledAt.Store(&done)
	return wait
}

func (a *Agent) sample(ctx context.Context, pod string, c *container) {
	woke, err := c.sample(a.clock.Now)
	a.failedSample(ctx, pod, err)
	if woke {
		signal(a.reflex.awake)
	}
	if milli, ask := c.wants(); ask {
		a.metrics.asks.Add(ctx, 1)
		a.link.asks.put(pod, milli)
	}
	m := c.memory()
	if c.sinking.Load() {
		m.limit = 0
	}
	if crowds(m.used, max(m.limit, c.covered.Load())) {
		signal(a.reflex.crowded)
	}
}

func (a *Agent) failedSample(ctx context.Context, pod string, err error) {
	// A container that ended takes its cgroup with it; the pod's event follows.
	if err == nil || cgroup.Gone(err) {
		return
	}
	a.metrics.sampleErrors.Add(ctx, 1)
	logf.FromContext(ctx).V(1).Info("sampling failed", "pod", pod, "reason", err.Error())
}

// observe queues the observation of an invocation whose end became known at now, and returns
// the result: that it did, or why there is no observation.
func (a *Agent) observe(ctx context.Context, e api.Ended, now time.Time, late bool) string {
	c := a.containers.get(e.Pod)
	first := c != nil && c.first()
	switch {
	case late:
		// When it ended is known only from when the agent hears of it.
		return resultLate
	case !e.Alone:
		return resultNotAlone
	case c == nil:
		return resultUnknownPod
	}
	wanted := c.wanted(now)
	if !wanted && c.leftOut.Load() {
		return resultEnough
	}
	// Its samples reach to its end, where an invocation that follows begins.
	before, err := c.sampleEnd(a.clock.Now)
	a.failedSample(ctx, e.Pod, err)
	if !wanted {
		return resultEnough
	}
	o, ok := c.observe(e, now, before)
	if !ok {
		return resultUncovered
	}
	o.First = first
	select {
	case a.queue <- o:
		return resultObserved
	default:
		return resultDropped
	}
}

// append appends queued observations until ctx ends.
func (a *Agent) append(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-a.queue:
			a.appendOne(ctx, o)
		}
	}
}

// appendOne retries until it succeeds or ctx ends: the queue bounds what an outage holds up.
func (a *Agent) appendOne(ctx context.Context, o api.Observation) {
	retry := backoff.Delay{Min: backoff.Min, Max: backOffMax}
	for {
		observeCtx, cancel := context.WithTimeout(ctx, observeTimeout)
		err := a.observer.Observe(observeCtx, o)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		a.metrics.redisFailed(ctx, "observe")
		if !retry.Failing() {
			logf.FromContext(ctx).Error(err, "could not append an observation; trying again until that succeeds", "function", o.Function)
		}
		backoff.Pause(ctx, a.clock, retry.Next())
	}
}
