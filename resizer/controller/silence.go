package controller

import (
	"time"

	"libra.dev/libra/pkg/api"
)

const (
	// nudgeAfter is how long a silence must last before pods are nudged, so that a
	// heartbeat that was lost with a flushed Redis comes first: agents send one a second.
	nudgeAfter = 1200 * time.Millisecond
	// nudgePatience is how long a nudge that may raise what is in force waits for those
	// that lower it, and so how long the kubelet has for these.
	nudgePatience = 3 * time.Second
	// nudgeMilli is by how much CPU is raised. For so little no restore has to wait.
	nudgeMilli = 1
	// nudgeTriesMost is how often a nudge that is refused is tried, nudgeRetry after the last
	// time. Each is one of a raise, which a quota may have no room for; then nothing makes
	// the kubelet write. That a raise was refused says little of a nudge, which is smaller.
	nudgeTriesMost = 3
	nudgeRetry     = 5 * time.Second
	// nudgeStep is in bytes. It is the largest page of any architecture, because the
	// kernel rounds memory limits to pages.
	nudgeStep = 64 << 10

	// startSlack is how much younger than this process a pod may seem and still be
	// taken for older: the clocks are two machines'.
	startSlack = time.Minute
)

// hear takes in whether the node has a living agent.
func (c *Controller) hear(n *node, living bool) {
	c.metrics.silent(n.name, !living)
	if living {
		n.silent, n.heard = false, true
		for _, m := range n.pods {
			m.nudgeAt = time.Time{}
		}
		return
	}
	if n.silent {
		return
	}
	n.silent = true
	at := c.clock.Now().Add(nudgeAfter)
	for _, m := range n.pods {
		// What was made since this process began, and before any agent came, has a
		// cgroup that only the kubelet has written.
		if n.heard || !m.pod.CreationTimestamp.After(c.started.Add(startSlack)) {
			m.nudgeAt, m.nudgeTries = at, 0
		}
	}
}

// nudges are the patches that make the kubelet write the cgroups of pods whose spec
// already says what it should. They are due once per silence and pod, because an
// agent that is no more may have left anything there: the kubelet does not read
// limits back, and writes them only when the spec is not what it wrote last. So the
// spec is raised a little, and lowered again once that is in force (lowering it
// before could hide both from the kubelet). One milli CPU is a thousandth of a core
// for as long as a resize takes, and the kubelet writes the memory limit along with
// it; without a CPU limit to raise, it is memory. A limit that is a ceiling is lowered
// instead, and raised again.
//
// Who may hold more than the spec says is nudged first: of the others, some may
// hold less, and the kubelet is not to give them theirs before it is free, which it
// has nudgePatience for from when it is told.
//
// next is how long until another is due.
func (c *Controller) nudges(n *node, pods []podLimits, planned []resize, now time.Time) (resizes []resize, next time.Duration) {
	next = tick
	if !n.silent {
		return nil, next
	}
	spare := spareOf(pods)
	var last, waiting []resize // may give a pod more; and have no room for it yet
	busy := make(map[string]bool, len(planned))
	for _, r := range planned {
		busy[r.pod] = true
	}
	for _, p := range pods {
		name, m := p.name, n.pods[p.name]
		if m.nudgeAt.IsZero() || busy[name] || m.leaving {
			continue
		}
		if now.Before(m.nudgeAt) {
			next = min(next, m.nudgeAt.Sub(now))
			continue
		}
		if !m.waitsSince.IsZero() || !m.arrived() {
			continue // the status is an event, and the tick comes for the rest
		}
		mayRaise := m.low < m.asked.CPUMilli
		noRoom := p.ceiling == 0 && mayRaise && m.asked.CPUMilli-p.reach() > spare
		if p.ceiling == 0 && p.reach() > m.asked.CPUMilli && !noRoom {
			n.lowering(now, nudgePatience)
		}
		if !halfLeft(c.total, now) {
			next = heldTick
			continue
		}
		limits := m.asked.Add(m.nudge())
		limits.MemoryBytes = max(limits.MemoryBytes, m.held)
		r := resize{name, limits, nudge}
		switch {
		case noRoom:
			waiting = append(waiting, r)
		case mayRaise:
			last = append(last, r)
		default:
			resizes = append(resizes, r)
		}
	}
	for _, r := range waiting {
		if !n.patient(n.pods[r.pod].nudgeAt, nudgePatience, now) {
			last = append(last, r)
		}
	}
	return append(resizes, last...), next
}

// spareOf is how many milli CPU of what the pods are owed cannot be in force with any of
// them, and one for the nudge of each. Those with a ceiling are no part of it.
func spareOf(pods []podLimits) (spare int64) {
	for _, p := range pods {
		if p.ceiling == 0 {
			spare += p.owed.CPUMilli - p.reach() + nudgeMilli
		}
	}
	return spare
}

// nudge is by how much the pod's limits are changed to make the kubelet write. What is at
// its ceiling is lowered instead of raised: nothing may have more, and no quota refuses it.
func (m *managedPod) nudge() api.Resources {
	if m.ceiling > 0 && m.asked.CPUMilli > m.owed.CPUMilli {
		return api.Resources{CPUMilli: -nudgeMilli}
	}
	return nudgeOf(m.asked)
}

// nudgeOf is by how much limits are raised to make the kubelet write.
func nudgeOf(limits api.Resources) api.Resources {
	if limits.CPUMilli > 0 {
		return api.Resources{CPUMilli: nudgeMilli}
	}
	return api.Resources{MemoryBytes: nudgeStep - limits.MemoryBytes%nudgeStep}
}
