package agent

import (
	"context"
	"time"

	"libra.dev/libra/pkg/api"
)

// longestAccounted bounds the time that one round can account for, so that a pause of
// the agent, in which it read nothing, is not taken for a time of loans.
const longestAccounted = 2 * time.Second

// sums are of all containers that the agent manages.
type sums struct {
	harvested, lent, idle api.Resources
	pins                  int64 // bytes
}

// account adds up what was in force since the last round, and checks what was read
// against the invariants.
func (r *reflex) account(ctx context.Context) {
	now := r.clock.Now()
	passed := min(now.Sub(r.accountedAt), longestAccounted)
	overTime(ctx, r.metrics.harvestedCPU, r.metrics.harvestedMem, r.sums.harvested, passed)
	overTime(ctx, r.metrics.lentCPU, r.metrics.lentMem, r.sums.lent, passed)
	overTime(ctx, r.metrics.idleCPU, r.metrics.idleMem, r.sums.idle, passed)
	r.accountedAt = now

	r.sums = sums{idle: r.state.Available}
	if r.lost {
		r.sums.idle = api.Resources{}
	}
	for _, e := range r.entries {
		if !e.managed() || !e.read {
			continue
		}
		due, inForce := e.due(r.balance(e)), e.inForce()
		for _, res := range resources {
			if limit, owed := *res.of(&inForce), *res.of(&e.owed); limit != 0 {
				*res.of(&r.sums.harvested) += max(0, owed-limit)
				*res.of(&r.sums.lent) += max(0, limit-owed)
			}
		}
		if limit := inForce.MemoryBytes; limit < max(pinned(e.reading.Memory), e.reading.Charged)+leastStep {
			r.sums.pins += max(0, limit-max(due.MemoryBytes, e.owed.MemoryBytes))
		}
		r.accountBelow(ctx, e, due, now)
		r.checkOverwritten(ctx, e, now)
	}
	r.metrics.pins.Record(ctx, r.sums.pins)
	over := r.sums.lent.Sub(r.sums.harvested)
	over.MemoryBytes -= r.sums.pins
	for _, res := range resources {
		r.checkExceeding(ctx, res, *res.of(&over), now)
	}
}

// accountBelow adds the time that a container has had less than what is due of its
// own, and checks that what the safeguard restored is in force.
func (r *reflex) accountBelow(ctx context.Context, e *entry, due api.Resources, now time.Time) {
	if !e.below(due) {
		e.belowSince = time.Time{}
		return
	}
	if !e.belowSince.IsZero() {
		r.metrics.below.Add(ctx, now.Sub(e.belowSince).Seconds(), ofFunction(e.info.function))
	}
	e.belowSince = now
	if e.held != (strike{}) && !e.heldLate && now.Sub(e.heldSince) > heldTime {
		e.heldLate = true
		r.metrics.violated(ctx, ruleDonorWhole)
		r.log.Info("a donor that the safeguard restored is still below its allocation", "pod", e.pod, "inForce", e.inForce().String())
	}
}

// checkOverwritten checks that nobody else keeps more in force than is due of a
// container: that it is put right each time it is seen does not help those on the node
// who have less for it.
func (r *reflex) checkOverwritten(ctx context.Context, e *entry, now time.Time) {
	inForce := e.inForce()
	raised := false
	for _, res := range resources {
		raised = raised || *res.of(&e.overwritten) > *res.of(&inForce)
	}
	switch {
	case !raised:
		e.raised = exceeding{}
	case e.raised.since.IsZero():
		e.raised.since = now
	case !e.raised.counted && now.Sub(e.raised.since) > exceedTime:
		e.raised.counted = true
		r.metrics.violated(ctx, ruleConservation)
		r.log.Info("another keeps a pod's limits above what is due of it", "pod", e.pod, "found", e.overwritten.String(), "inForce", inForce.String())
	}
}

// checkExceeding checks that no more is in force than is owed, but for the moment
// that it takes to shrink borrowers.
func (r *reflex) checkExceeding(ctx context.Context, res resource, over int64, now time.Time) {
	x := &r.exceeding[res]
	switch {
	case over <= 0:
		if !x.since.IsZero() {
			r.metrics.exceeded.Record(ctx, now.Sub(x.since).Seconds())
		}
		*x = exceeding{}
	case x.since.IsZero():
		x.since = now
	case !x.counted && now.Sub(x.since) > exceedTime:
		x.counted = true
		r.metrics.violated(ctx, ruleConservation)
		r.log.Info("more is in force on the node than its pods are owed", "resource", res.String(), "by", over)
	}
}

// checkMargin checks that a memory limit that was just set leaves what is in use.
func (r *reflex) checkMargin(ctx context.Context, e *entry) {
	limit := e.inForce().MemoryBytes
	if !e.read || limit == 0 || limit != e.written.MemoryBytes || limit >= e.owed.MemoryBytes || limit >= e.reading.Memory {
		return
	}
	r.metrics.violated(ctx, ruleMemoryMargin)
	r.log.Info("a memory limit is below what is in use", "pod", e.pod, "limit", limit, "memory", e.reading.Memory)
}
