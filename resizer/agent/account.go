package agent

import (
	"context"
	"time"

	"libra.dev/libra/pkg/api"
)

// longestAccounted bounds the time that one round can account for, so that a pause in
// which the agent read nothing does not count as time on loan.
const longestAccounted = 2 * time.Second

// sums are totals over all containers of the node.
type sums struct {
	lentMilli           int64
	borrowed, available api.Resources
}

// account adds up what was in force since the last round, and checks the readings
// against the invariants.
func (r *reflex) account(ctx context.Context) {
	now := r.clock.Now()
	passed := min(now.Sub(r.accountedAt), longestAccounted)
	coreSeconds(ctx, r.metrics.lentCPU, r.sums.lentMilli, passed)
	coreSeconds(ctx, r.metrics.borrowedCPU, r.sums.borrowed.CPUMilli, passed)
	coreSeconds(ctx, r.metrics.availableCPU, r.sums.available.CPUMilli, passed)
	byteSeconds(ctx, r.metrics.borrowedMem, r.sums.borrowed.MemoryBytes, passed)
	byteSeconds(ctx, r.metrics.availableMem, r.sums.available.MemoryBytes, passed)
	r.accountedAt = now

	r.sums = sums{available: r.state.Available, borrowed: api.Resources{MemoryBytes: r.aboveMemory}}
	if r.lost {
		r.sums.available = api.Resources{}
	}
	for _, e := range r.entries {
		r.report(e, passed)
		e.reported = inForce{borrowed: api.Resources{MemoryBytes: e.memory.above}}
		if !e.managed() || !e.read {
			continue
		}
		if limit := e.inForce(); limit != 0 {
			e.reported.lentMilli = max(0, e.owed-limit)
			e.reported.borrowed.CPUMilli = max(0, limit-e.owed)
			r.sums.lentMilli += e.reported.lentMilli
			r.sums.borrowed.CPUMilli += e.reported.borrowed.CPUMilli
		}
		r.accountBelow(ctx, e, e.due(r.balance(e)), now)
		r.checkOverwritten(ctx, e, now)
	}
	r.checkExceeding(ctx, r.sums.borrowed.CPUMilli-r.sums.lentMilli, now)
}

// accountBelow adds up the time for which a container has had less of its own CPU than
// it is due, and checks that what the safeguard restored is in force.
func (r *reflex) accountBelow(ctx context.Context, e *entry, due int64, now time.Time) {
	if !e.below(due) {
		e.belowSince = time.Time{}
		return
	}
	if !e.belowSince.IsZero() {
		r.metrics.below.Add(ctx, now.Sub(e.belowSince).Seconds(), ofFunction(e.info.function))
	}
	e.belowSince = now
	if e.held && !e.heldLate && now.Sub(e.heldSince) > heldTime {
		e.heldLate = true
		r.metrics.violated(ctx, ruleDonorWhole)
		r.log.Info("a donor that the safeguard restored is still below its allocation", "pod", e.pod, "inForce", e.inForce())
	}
}

// checkOverwritten checks that nobody else keeps a container's limit above what is
// due. The agent corrects such a limit whenever it sees it, but that does not help the
// pods on the node that have had less because of it.
func (r *reflex) checkOverwritten(ctx context.Context, e *entry, now time.Time) {
	inForce := e.inForce()
	switch {
	case e.overwritten <= inForce:
		e.raised = exceeding{}
	case e.raised.since.IsZero():
		e.raised.since = now
	case !e.raised.counted && now.Sub(e.raised.since) > exceedTime:
		e.raised.counted = true
		r.metrics.violated(ctx, ruleConservation)
		r.log.Info("something other than the agent keeps the CPU limit of a pod above what is due", "pod", e.pod, "found", e.overwritten, "inForce", inForce)
	}
}

// checkExceeding checks that no more CPU is in force on the node than its pods are
// owed, except for the moment that it takes to shrink borrowers.
func (r *reflex) checkExceeding(ctx context.Context, over int64, now time.Time) {
	x := &r.exceeding
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
		r.log.Info("more CPU is in force on the node than its pods are owed", "byMilli", over)
	}
}
