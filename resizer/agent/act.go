package agent

import (
	"context"
	"errors"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/cgroup"
)

// look reads a container, and lets the safeguard act at once on what it sees.
func (r *reflex) look(ctx context.Context, e *entry) {
	at := r.clock.Now()
	reading, err := e.info.cgroup.Read()
	switch {
	case isGone(err):
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
	r.most[e.info.function] = max(r.most[e.info.function], reading.Memory)
	if e.debtor == "" {
		r.setWhole(e, true) // nobody has changed it
		return
	}
	r.setWhole(e, e.whole || e.wholeOrPinned())
	r.compare(ctx, e, unread)
	if r.settings.Unguarded {
		return
	}
	cpuTrips, memoryTrips := e.watch.add(sample{at, reading}, e.owed, r.settings.Threshold)
	if cpuTrips {
		r.fire(ctx, e, cpu, at)
	}
	if memoryTrips && e.managed() {
		r.fire(ctx, e, memory, at)
	}
}

func (r *reflex) setWhole(e *entry, whole bool) {
	if whole != e.whole {
		e.whole, r.beatDue = whole, true
	}
}

// lose notices that a container has ended.
func (r *reflex) lose(e *entry) {
	e.close()
	r.beatDue = true
	if !e.present && !r.clock.Now().Before(e.forgetAt) {
		r.drop(e)
	}
}

// compare notices that somebody wrote over what the agent had written, since it was last
// read. It is written again like any other limit that is not what is due, but what was
// in force until now counts.
func (r *reflex) compare(ctx context.Context, e *entry, unread time.Duration) {
	due := e.due(r.balance(e))
	lowered := false
	for _, res := range resources {
		written, found := res.of(&e.written), *res.of(&e.reading.Limit)
		if *written == 0 || *written == found {
			continue
		}
		if found != *res.of(&due) {
			*res.of(&e.overwritten) = found
			lowered = lowered || found != 0 && found < min(*res.of(&due), *res.of(&e.owed))
			r.metrics.rewrote(ctx, res)
			if times, ok := r.repeats.tell(e.pod, "changed back "+res.String(), r.clock.Now()); ok {
				r.log.Info("a limit was changed back by another", "pod", e.pod, "resource", res.String(),
					"written", *written, "found", found, "times", times)
			}
		}
		*written = 0
	}
	if lowered && e.belowSince.IsZero() {
		r.metrics.below.Add(ctx, min(unread, longestAccounted).Seconds(), ofFunction(e.info.function))
	}
}

// fire gives a donor back, at once, what it lends of a resource. The pool then hears
// of it, and its borrowers are shrunk by the state that follows.
func (r *reflex) fire(ctx context.Context, e *entry, res resource, at time.Time) {
	due := e.due(r.balance(e))
	if *res.of(&due) >= *res.of(&e.owed) {
		return // it gets it back in this round anyway
	}
	s := strike{cpu: res == cpu, memory: res == memory}
	e.held = strike{e.held.cpu || s.cpu, e.held.memory || s.memory}
	e.heldSince, e.heldLate = at, false
	limit := *res.of(&e.reading.Limit)
	if r.write(ctx, e, write{e.pod, res, restore, *res.of(&e.owed)}) {
		*res.of(&e.reading.Limit) = *res.of(&e.owed) // the next reading will tell
	}
	r.metrics.safeguarded(ctx, e.info.function, res, r.clock.Since(at))
	r.revokedBy = r.clock.Now().Add(revokeTime)
	r.link.strike(e.pod, s)
	if times, ok := r.repeats.tell(e.pod, "restored "+res.String(), at); ok {
		r.log.Info("the safeguard restored a donor", "pod", e.pod, "function", e.info.function, "resource", res.String(),
			"limit", limit, "allocation", *res.of(&e.owed), "memory", e.reading.Memory, "times", times)
	}
}

// act writes what can be written, until there is nothing more: what a decrease frees
// is given on only when it was read, and what was to come from a donor that cannot be
// lowered is taken back in the same round.
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
			if e == nil || !e.managed() || e.retries[w.resource].holds(w.direction, r.clock.Now()) {
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
				r.checkMargin(ctx, e)
			}
		}
	}
	return wrote
}

func (r *reflex) view(e *entry) view {
	v := view{pod: e.pod, owed: e.owed, due: e.due(r.balance(e)), inForce: e.inForce()}
	if v.due.MemoryBytes < v.owed.MemoryBytes {
		v.keep = r.floorNow(e)
	} else if v.keep = pinned(e.reading.Memory); e.reading.Memory <= e.owed.MemoryBytes {
		// What it uses fits what it is owed: a margin is no reason to keep more.
		v.keep = min(v.keep, e.owed.MemoryBytes)
	}
	if charged := e.reading.Charged; e.reclaimed {
		v.keep = max(v.keep, charged)
	} else {
		v.keep = max(v.keep, charged-reclaimStep)
	}
	now := r.clock.Now()
	for _, res := range resources {
		// A donor that just could not be lowered pays for nothing either.
		if e.retries[res].holds(lower, now) {
			*res.of(&v.due) = max(*res.of(&v.due), min(*res.of(&v.inForce), *res.of(&v.owed)))
		}
	}
	v.keep = e.info.cgroup.Attainable(api.Resources{MemoryBytes: v.keep}).MemoryBytes
	return v
}

// floorNow is the least that the donor's memory limit may be lowered to now.
func (r *reflex) floorNow(e *entry) int64 {
	if r.v2 {
		return roomy(e.reading.Memory, r.settings.Threshold)
	}
	return roomy(r.most[e.info.function], r.settings.Threshold)
}

// write sets one limit.
func (r *reflex) write(ctx context.Context, e *entry, w write) bool {
	var limits api.Resources
	*w.resource.of(&limits) = w.to
	if w.resource == memory && w.to < e.reading.Charged {
		e.reclaimed = true
	}
	span := r.span(e, w)
	err := actuate.Cgroup(e.info.cgroup, e.allocation.MemoryBytes).SetLimits(ctx, limits)
	result := resultOf(err)
	endSpan(span, result, err)
	r.metrics.wrote(ctx, w, result)
	retry := &e.retries[w.resource]
	switch result {
	case resultWritten:
		retry.succeeded()
		e.unsure[w.resource] = false
		*w.resource.of(&e.written) = w.to
		if w.direction == restore {
			cause := r.cause(e, w.resource)
			r.metrics.restored(ctx, cause)
			r.log.V(1).Info("restored", "pod", e.pod, "resource", w.resource.String(), "to", w.to, "cause", cause)
		}
		return true
	case resultGone:
		r.lose(e)
		return false
	case resultFailed:
		if !retry.delay.Failing() {
			r.log.Error(err, "setting a limit; it is tried again", "pod", e.pod, "resource", w.resource.String(), "to", w.to)
		}
	}
	retry.failed(w.direction, r.clock.Now())
	return false
}

// resultOf is what became of a write.
func resultOf(err error) string {
	switch {
	case err == nil:
		return resultWritten
	case isGone(err):
		return resultGone
	case errors.Is(err, cgroup.ErrInUse):
		return resultInUse
	default:
		return resultFailed
	}
}

// giveBack writes what was read, once, when that is what the container is owed, or memory
// above it, which may have to stay: on v2 the limit that binds may be memory.high, with
// another memory.max.
func (r *reflex) giveBack(ctx context.Context, e *entry) {
	inForce := e.inForce()
	for _, res := range resources {
		w := write{e.pod, res, restore, *res.of(&e.owed)}
		if found := *res.of(&inForce); res == memory && found > w.to {
			w.direction, w.to = lower, found
		} else if found != w.to {
			continue
		}
		if e.unsure[res] && e.managed() && !e.retries[res].holds(w.direction, r.clock.Now()) {
			r.write(ctx, e, w)
		}
	}
}

// cause is why a container gets back what it is owed.
func (r *reflex) cause(e *entry, res resource) string {
	switch {
	case r.stopping:
		return causeStop
	case res == cpu && e.held.cpu, res == memory && e.held.memory:
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
