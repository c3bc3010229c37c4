package agent

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
	"libra.dev/libra/resizer/telemetry"
)

// look reads a container, and lets the safeguard act at once on what it sees.
func (r *reflex) look(ctx context.Context, e *entry) {
	reading, at, err := r.readContainer(e)
	switch {
	case cgroup.Gone(err):
		r.lose(e)
		return
	case err != nil:
		e.read = false
		r.metrics.sampleErrors.Add(ctx, 1)
		r.log.V(1).Info("sampling failed", "pod", e.pod, "reason", err.Error())
		return
	}
	unread := at.Sub(e.readAt)
	e.reading, e.read, e.readAt = reading, true, at
	if e.debtor == "" {
		r.setWhole(e, true) // nobody has changed it
		return
	}
	r.setWhole(e, e.whole || !e.unsure && e.inForce() == e.owed)
	r.compare(ctx, e, unread)
	if !r.settings.Unguarded && e.watch.add(sample{at, reading}, e.owed, e.info.safeguard()) {
		r.fire(ctx, e, at)
	}
}

// readContainer returns a reading of a container, and when it was taken. While nobody has changed
// the container or is about to, a recent sample will do.
func (r *reflex) readContainer(e *entry) (cgroup.Reading, time.Time, error) {
	now := r.clock.Now()
	if c := r.sampled.get(e.pod); c != nil && c.id == e.info.container && e.read && e.whole && e.debtor == "" && !r.stopping && !r.concerns(e) {
		if s, ok := c.lately(now); ok {
			return s.Reading, s.at, nil
		}
	}
	reading, err := e.info.cgroup.Read()
	return reading, now, err
}

func (r *reflex) setWhole(e *entry, whole bool) {
	if whole != e.whole {
		e.whole, r.beatDue = whole, true
	}
}

// lose takes note that a container has ended.
func (r *reflex) lose(e *entry) {
	e.close()
	r.beatDue = true
	if !e.present && !r.clock.Now().Before(e.forgetAt) {
		r.drop(e)
	}
}

// compare notices that somebody has overwritten the agent's limit since it was last read.
// The limit is corrected like any other that is not what is due, but what was in force
// until now is accounted for.
func (r *reflex) compare(ctx context.Context, e *entry, unread time.Duration) {
	found := e.reading.Limit.CPUMilli
	if e.written == 0 || e.written == found {
		return
	}
	if due := e.due(r.balance(e)); found != due {
		e.overwritten = found
		r.metrics.rewrites.Add(ctx, 1, ofCPU)
		if times, ok := r.repeats.tell(e.pod, "changed back", r.clock.Now()); ok {
			r.log.Info("something other than the agent changed a CPU limit", "pod", e.pod, "written", e.written, "found", found, "times", times)
		}
		if found != 0 && found < min(due, e.owed) && e.belowSince.IsZero() {
			r.metrics.below.Add(ctx, min(unread, longestAccounted).Seconds(), ofFunction(e.info.function))
		}
	}
	e.written = 0
}

// fire gives a donor back at once what it lends, and then tells the pool. The state that
// follows shrinks the borrowers. If the write fails, act tries again.
func (r *reflex) fire(ctx context.Context, e *entry, at time.Time) {
	b := r.balance(e)
	if e.due(b) >= e.owed {
		return // this round gives it back anyway
	}
	e.held, e.heldIdle, e.restoring = true, b.Idle, exceeding{since: at}
	limit := e.reading.Limit.CPUMilli
	restored := r.write(ctx, e, write{e.pod, restore, e.owed})
	if restored {
		e.reading.Limit.CPUMilli = e.owed // assumed until the next reading
		r.metrics.reaction.Record(ctx, r.clock.Since(at).Seconds())
	}
	r.metrics.safeguards.Add(ctx, 1, ofFunction(e.info.function))
	r.reportSafeguard(e)
	r.revokedBy = r.clock.Now().Add(revokeTime)
	r.link.strikes.put(e.pod, b.Idle)
	if !restored {
		return
	}
	if times, ok := r.repeats.tell(e.pod, "restored", at); ok {
		r.log.Info("the safeguard restored a donor", "pod", e.pod, "function", e.info.function,
			"idle", b.Idle, "limit", limit, "allocation", e.owed, "times", times)
	}
}

// act writes limits in several passes, until nothing is left to write. CPU that a decrease
// frees is given on only once the decrease has been read back. CPU that was to come from a
// donor that cannot be lowered is taken back in the same round.
func (r *reflex) act(ctx context.Context) (wrote bool) {
	if !slices.ContainsFunc(r.entries, (*entry).managed) {
		return false
	}
	for range passes {
		var views []view
		for _, e := range r.entries {
			if e.managed() && e.read {
				views = append(views, r.view(e))
			}
		}
		touched, failed := map[*entry]struct{}{}, false
		for _, w := range plan(views, r.clock.Now().Before(r.revokedBy)) {
			e := r.get(w.pod)
			if e == nil || !e.managed() || e.retry.holds(w.direction, r.clock.Now()) {
				continue
			}
			if r.write(ctx, e, w) {
				touched[e] = struct{}{}
			} else {
				failed = true
			}
		}
		if len(touched) == 0 && !failed {
			return wrote
		}
		wrote = wrote || len(touched) > 0
		for e := range touched {
			if e.managed() {
				r.look(ctx, e)
			}
		}
	}
	return wrote
}

func (r *reflex) view(e *entry) view {
	v := view{pod: e.pod, owed: e.owed, due: e.due(r.balance(e)), inForce: e.inForce()}
	// A donor that could not be lowered a moment ago pays for nothing.
	if e.retry.holds(lower, r.clock.Now()) {
		v.due = max(v.due, min(v.inForce, v.owed))
	}
	return v
}

// write sets one limit.
func (r *reflex) write(ctx context.Context, e *entry, w write) bool {
	span := r.span(e, w)
	err := e.info.cgroup.SetCPU(w.to)
	result := resultOf(err)
	telemetry.EndSpan(span, result, err)
	r.metrics.wrote(ctx, w, result)
	switch result {
	case resultWritten:
		e.retry.succeeded()
		e.unsure, e.written = false, w.to
		if c := r.sampled.get(e.pod); c != nil {
			if w.to <= e.owed {
				c.repaid.Store(true)
				r.link.asks.drop(e.pod) // it was about the loan that has ended
			}
			// Otherwise samples of a container at rest keep the old limit for up to limitsFor.
			c.lookAgain.Store(true)
		}
		if w.direction == restore {
			cause := r.cause(e)
			r.metrics.restored(ctx, cause)
			r.log.V(1).Info("restored a CPU limit", "pod", e.pod, "to", w.to, "cause", cause)
		}
		return true
	case resultGone:
		r.lose(e)
		return false
	}
	if !e.retry.delay.Failing() {
		r.log.Error(err, "could not set a CPU limit; retrying", "pod", e.pod, "to", w.to)
	}
	e.retry.failed(w.direction, r.clock.Now())
	return false
}

// resultOf is the result of a write, for the metrics.
func resultOf(err error) string {
	switch {
	case err == nil:
		return resultWritten
	case cgroup.Gone(err):
		return resultGone
	default:
		return resultFailed
	}
}

// giveBack writes an unsure limit once, though it reads as what the container is owed.
func (r *reflex) giveBack(ctx context.Context, e *entry) {
	if e.unsure && e.managed() && e.inForce() == e.owed && !e.retry.holds(restore, r.clock.Now()) {
		r.write(ctx, e, write{e.pod, restore, e.owed})
	}
}

// cause is why a container gets back what it is owed.
func (r *reflex) cause(e *entry) string {
	switch {
	case r.stopping:
		return causeStop
	case e.held:
		return causeSafeguard
	case e.left:
		return causeStart
	case e.replaced:
		return causeChanged
	case r.lost:
		return causeRedisLost
	default:
		return causeEnded
	}
}

// span starts the span of a write, as a child of the span of the invocation whose loan
// it is for. Limits are in milli CPU, as in the log.
func (r *reflex) span(e *entry, w write) trace.Span {
	if e.trace == "" {
		return telemetry.Untraced
	}
	_, span := r.tracer.Start(api.ContextWithTraceparent(context.Background(), e.trace), "libra.resize", trace.WithAttributes(
		attribute.String("libra.way", "cgroup"),
		attribute.String("libra.node", r.settings.Node),
		attribute.String("libra.pod", e.pod),
		attribute.String("libra.container", e.info.container),
		attribute.String("libra.direction", w.direction.String()),
		attribute.String("libra.resource", "cpu"),
		attribute.Int64("libra.cpu.from", e.reading.Limit.CPUMilli),
		attribute.Int64("libra.cpu.to", w.to),
	))
	if w.direction == restore {
		span.SetAttributes(attribute.String("libra.cause", r.cause(e)))
	}
	return span
}
