package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
)

// direction of a resize, in the order in which they are issued.
type direction int

const (
	restore direction = iota // back towards the user allocation, from below
	lower
	raise // above the user allocation
	nudge // by as little as there is, for the kubelet to write the cgroup
)

func (d direction) String() string {
	return [...]string{"restore", "lower", "raise", "nudge"}[d]
}

// resize is one patch to issue now.
type resize struct {
	pod       *managedPod
	limits    api.Resources
	direction direction
	reason    string
}

// refusable is for what a resize is refused, if it is, that can wait: the reason of a nudge, a
// ceiling or more memory, and otherwise empty.
func (r resize) refusable() string {
	m := r.pod
	switch {
	case r.direction == restore:
		return ""
	case r.direction == nudge:
		return reasonRepair
	case r.limits.MemoryBytes > m.asked.MemoryBytes:
		return reasonMemory
	case r.limits.CPUMilli > m.asked.CPUMilli:
		return reasonCeiling
	}
	return ""
}

// canWait says that a resize is for nobody's own, nor keeps a pod from being killed: it gives a
// pod its ceiling, or takes that or memory back, or has the kubelet write what is mostly right.
func (r resize) canWait() bool {
	return r.direction != restore && r.limits.MemoryBytes <= r.pod.asked.MemoryBytes
}

// plan returns the resizes that may be issued now, in the order to issue them: restores,
// decreases, increases and repairs. No pod's depends on another's, but that what borrowers may
// hold too much of is taken back before the others are repaired. next is how long until there
// may be more to do, if nothing changes.
func (n *node) plan(now time.Time) (resizes []resize, next time.Duration) {
	next = n.agent.untilRepair(now)
	if n.loans.state != isRead {
		next = min(next, tick)
	}
	for _, name := range slices.Sorted(maps.Keys(n.pods)) {
		m := n.pods[name]
		if m.leftAlone != "" {
			if !m.unreadSince.IsZero() {
				next = min(next, tick)
			}
			continue
		}
		r, again := n.resizeOf(m, now)
		if r.limits != m.asked {
			resizes = append(resizes, r)
		}
		next = min(next, again)
		if !m.arrived() || m.asked.MemoryBytes > m.owed.MemoryBytes {
			next = min(next, tick) // what is due may end without a word
		}
	}
	slices.SortStableFunc(resizes, func(a, b resize) int { return cmp.Compare(a.direction, b.direction) })
	return resizes, next
}

// resizeOf is what the pod's limits are to be now: its CPU the ceiling, or what it is owed, and
// its memory what is due.
func (n *node) resizeOf(m *managedPod, now time.Time) (r resize, next time.Duration) {
	r = resize{pod: m, limits: api.Resources{CPUMilli: m.cpuTarget(now)}, reason: reasonMemory}
	r.limits.MemoryBytes, next = m.memoryTarget(now)
	if m.pod.DeletionTimestamp != nil {
		r.limits = m.asked.Max(m.owed)
	}
	if wait := m.ceiling.refusedUntil.Sub(now); wait > 0 {
		next = min(next, wait)
	}

	switch m.repair.stage {
	case repairBumped:
		r.reason = reasonRepair
		if !m.arrived() && m.pending.reason == "" && m.running {
			r.limits.CPUMilli = m.asked.CPUMilli
		}
	case repairDue:
		again, ready := n.mayRepair(m, now)
		if next = min(next, again); ready && r.limits == m.asked {
			r.limits.CPUMilli, r.direction, r.reason = m.bumped(m.asked.CPUMilli), nudge, reasonRepair
			return r, next
		}
	}

	if r.limits.CPUMilli != m.asked.CPUMilli && r.reason != reasonRepair {
		r.reason = reasonCeiling
		// What is its own, and memory, go before the ceiling, so that a refusal tells which of
		// them has no room.
		switch {
		case m.asked.CPUMilli < m.owed.CPUMilli && r.limits.CPUMilli > m.owed.CPUMilli:
			r.limits.CPUMilli, next = m.owed.CPUMilli, 0
		case m.asked.CPUMilli >= m.owed.CPUMilli && r.limits.MemoryBytes != m.asked.MemoryBytes:
			r.limits.CPUMilli, r.reason, next = m.asked.CPUMilli, reasonMemory, 0
		}
	}
	whole := r.limits.Min(m.owed)
	switch {
	case whole.CPUMilli > m.asked.CPUMilli, whole.MemoryBytes > m.asked.MemoryBytes:
		r.direction, r.reason = restore, reasonRestore
	case r.limits.CPUMilli < m.asked.CPUMilli, r.limits.MemoryBytes < m.asked.MemoryBytes:
		r.direction = lower
	default:
		r.direction = raise
	}
	return r, next
}

// mayRepair says that the kubelet may be made to write the pod's cgroup now, or when to ask again.
func (n *node) mayRepair(m *managedPod, now time.Time) (again time.Duration, ready bool) {
	switch {
	case m.owed.CPUMilli == 0 || m.standing != takesPart || m.pod.DeletionTimestamp != nil:
		m.repair = repair{} // nothing of it is the agent's
		return resync, false
	case !m.running:
		return resync, false // its status is an event; the weight is the pod's, and stays meanwhile
	case now.Before(m.repair.at):
		return m.repair.at.Sub(now), false
	case !m.arrived():
		return tick, false // its status is an event
	case !m.repair.first && m.ceiling.milli == 0 && !n.mayRepairOthers(now):
		return waitTick, false
	}
	return resync, true
}
