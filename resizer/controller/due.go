package controller

import (
	"time"

	"libra.dev/libra/pkg/pool"
)

// expect takes in the pod's balance. An agent gives it to the container, or gave it
// before it fell silent and this process began.
func (m *managedPod) expect(n *node, b pool.Balance, now time.Time) {
	due := m.ofOwed(m.owed.Add(b.Borrowed).Sub(b.Lent))
	if m.ceiling > 0 {
		due.CPUMilli = m.ceiling
	}
	known := !m.cpuSince.IsZero()
	if m.cpuSince.IsZero() || due.CPUMilli != m.due.CPUMilli {
		m.cpuSince = now
		if m.ceiling == 0 {
			m.dueVersion = n.version
		}
	}
	if m.memorySince.IsZero() || due.MemoryBytes != m.due.MemoryBytes {
		m.memorySince, m.dueVersion = now, n.version
	}
	m.due = due
	if m.ceiling > 0 {
		m.placed = m.asked.CPUMilli > m.owed.CPUMilli
	} else {
		m.placed = m.placed && m.asked.CPUMilli > due.CPUMilli
	}
	switch {
	case m.placed && m.ceiling == 0:
		m.overtaken = true // the agent had no loan to end
	case m.unanswered != nil && m.unanswered.limits.CPUMilli > due.CPUMilli, !m.settled && m.asked.CPUMilli > due.CPUMilli:
		m.overtaken = true
	case m.settled && m.asked.CPUMilli <= due.CPUMilli:
		m.overtaken = false
	}
	m.awaited = !n.silent && n.acted < m.dueVersion
	switch {
	case n.silent && m.nudgeAt.IsZero() && m.arrived():
		m.low, m.granted = m.asked.CPUMilli, m.asked.CPUMilli // the kubelet has written it since
	case known && (n.silent || m.awaited):
		m.low, m.granted = min(m.low, due.CPUMilli), max(m.granted, due.CPUMilli)
	default:
		m.low, m.granted = due.CPUMilli, due.CPUMilli
	}
	if m.ceiling > 0 && (!n.silent || !m.nudgeAt.IsZero()) {
		m.low = min(m.low, m.owed.CPUMilli) // the agent takes that much back where others wait
	}
	if !b.Borrowed.IsZero() || !b.Lent.IsZero() {
		m.trace = b.Trace
	} else if m.asked == m.owed || m.asked == m.rest() {
		m.trace = ""
	}
	m.held = max(m.held, due.MemoryBytes)
}
