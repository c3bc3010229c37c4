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
	if e.restoring.count(e.held, now, heldTime) {
		r.metrics.violated(ctx, ruleDonorWhole)
		r.log.Info("a donor that the safeguard restored is still below its allocation", "pod", e.pod, "inForce", e.inForce())
	}
}

// checkOverwritten checks that nobody else keeps a container's limit above what is
// due. The agent corrects such a limit whenever it sees it, but that does not help the
// pods on the node that have had less because of it.
func (r *reflex) checkOverwritten(ctx context.Context, e *entry, now time.Time) {
	inForce := e.inForce()
	if e.raised.count(e.overwritten > inForce, now, exceedTime) {
		r.metrics.violated(ctx, ruleConservation)
		r.log.Info("something other than the agent keeps the CPU limit of a pod above what is due", "pod", e.pod, "found", e.overwritten, "inForce", inForce)
	}
}

// checkExceeding checks that no more CPU is in force on the node than its pods are
// owed, except for the moment that it takes to shrink borrowers.
func (r *reflex) checkExceeding(ctx context.Context, over int64, now time.Time) {
	if since := r.exceeding.since; over <= 0 && !since.IsZero() {
		r.metrics.exceeded.Record(ctx, now.Sub(since).Seconds())
	}
	if r.exceeding.count(over > 0, now, exceedTime) {
		r.metrics.violated(ctx, ruleConservation)
		r.log.Info("more CPU is in force on the node than its pods are owed", "byMilli", over)
	}
}

// checkShares checks that, by what was read, the pods of a group have no more than the
// kubelet gave them, and each pod in flight has what it keeps of its own.
func (r *reflex) checkShares(ctx context.Context, groups map[group][]*entry, now time.Time) {
	for g := range r.sharesWrong {
		if _, ok := groups[g]; !ok {
			delete(r.sharesWrong, g)
		}
	}
	for g, members := range groups {
		var inForce, kubelets int64
		below := ""
		for _, e := range members {
			w := &e.weighing
			inForce += w.inForce
			kubelets += w.kubelet
			if w.file != nil && w.belowFloor() {
				below = e.pod
			}
		}
		x := r.sharesWrong[g]
		if x.count(inForce > kubelets || below != "", now, exceedTime) {
			r.metrics.violated(ctx, ruleShares)
			r.log.Info("CPU weights of pods are out of bounds", "namespace", g.namespace, "parent", g.parent,
				"inForce", inForce, "kubelets", kubelets, "belowItsOwn", below)
		}
		r.sharesWrong[g] = x
	}
}
