package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
)

// direction is that of a resize. Resizes are issued in the order of the constants.
type direction int

const (
	restore direction = iota // back towards the user allocation, from below
	lower
	raise // above the user allocation
	nudge // by the smallest step, to make the kubelet write the cgroup
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

// refusable returns the reason that is put off if r is refused: that of a nudge, of a ceiling or of
// more memory. It is empty for any other resize.
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

// canWait reports whether r neither gives a pod back what it is owed nor keeps it from being
// killed: it gives the pod its ceiling, takes that or memory back, or has the kubelet write what is
// mostly right.
func (r resize) canWait() bool {
	return r.direction != restore && r.limits.MemoryBytes <= r.pod.asked.MemoryBytes
}

// order sorts resizes by direction, and those of one direction by whether they can wait.
func order(a, b resize) int {
	switch {
	case a.direction != b.direction || a.canWait() == b.canWait():
		return cmp.Compare(a.direction, b.direction)
	case b.canWait():
		return -1
	}
	return 1
}

// plan returns the resizes that may be issued now, in the order to issue them: restores, decreases,
// increases and repairs, and of each kind first those that cannot wait. Pods do not depend on each
// other, with one exception: borrowers that may hold too much are repaired before the other pods.
// next is how long until there may be more to do, if nothing changes.
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
			next = min(next, tick) // what is due may end without an event
		}
	}
	slices.SortStableFunc(resizes, order)
	return resizes, next
}

// resizeOf returns the resize that brings the pod to its targets: CPU to the ceiling, or to what it
// is owed, and memory to what is due.
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
		// Ask for what the pod is owed, and for memory, before the ceiling, so that a refusal tells
		// which of them has no room.
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

// mayRepair reports whether the kubelet may be made to write the pod's cgroup now, and how long
// until to ask again.
func (n *node) mayRepair(m *managedPod, now time.Time) (again time.Duration, ready bool) {
	switch {
	case m.owed.CPUMilli == 0 || m.standing != takesPart || m.pod.DeletionTimestamp != nil:
		m.repair = repair{} // nothing in it is the agent's
		return resync, false
	case !m.running:
		return resync, false // a change of its status is an event; the weight is the pod's, and stays meanwhile
	case now.Before(m.repair.at):
		return m.repair.at.Sub(now), false
	case !m.arrived():
		return tick, false // a change of its status is an event
	case !m.repair.first && m.ceiling.milli == 0 && !n.mayRepairOthers(now):
		return waitTick, false
	}
	return resync, true
}
