package controller

import (
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
)

const (
	// nudgeAfter is how long a silence must last before pods are nudged, so that a
	// heartbeat that was lost with a flushed Redis comes first.
	nudgeAfter = 2 * time.Second
	// nudgeSpread is over how long the nudges of nodes that fall silent together are
	// spread: all agents are silent when Redis is.
	nudgeSpread = 2 * time.Second
	// nudgeTriesMost is how often a nudge that is refused is tried. Each is one of a
	// raise, which a quota may have no room for; then nothing makes the kubelet write.
	nudgeTriesMost = 3
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
			m.nudgeAt, m.nudgeTries = at.Add(spread(m.pod.UID)), 0
		}
	}
}

// spread is the pod's part of nudgeSpread, the same each time.
func spread(uid types.UID) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(uid))
	return time.Duration(h.Sum32()) % nudgeSpread
}

// nudges are the patches that make the kubelet write the cgroups of pods whose spec
// already says what it should. They are due once per silence and pod, because an
// agent that is no more may have left anything there: the kubelet does not read
// limits back, and writes them only when the spec is not what it wrote last. So the
// spec is raised a little, and lowered again once that is in force (lowering it
// before could hide both from the kubelet). One milli CPU is a thousandth of a core
// for as long as a resize takes, and the kubelet writes the memory limit along with
// it; without a CPU limit to raise, it is memory.
//
// next is how long until another is due.
func (c *Controller) nudges(n *node, planned []resize, now time.Time) (resizes []resize, next time.Duration) {
	next = tick
	if !n.silent {
		return nil, next
	}
	busy := make(map[string]bool, len(planned))
	for _, r := range planned {
		busy[r.pod] = true
	}
	for name, m := range n.pods {
		if m.nudgeAt.IsZero() || busy[name] || m.leftAlone != "" || m.leaving {
			continue
		}
		if now.Before(m.nudgeAt) {
			next = min(next, m.nudgeAt.Sub(now))
			continue
		}
		if !m.arrived() || now.Before(m.refusedUntil) {
			continue // the status is an event, and the tick comes for the rest
		}
		if c.total.TokensAt(now) < float64(c.settings.TotalBurst)/2 {
			next = heldTick // restores go first, on every node
			continue
		}
		limits := m.asked.Add(nudgeOf(m.asked))
		limits.MemoryBytes = max(limits.MemoryBytes, m.held)
		resizes = append(resizes, resize{name, limits, nudge})
	}
	return resizes, next
}

// nudgeOf is by how much limits are raised to make the kubelet write.
func nudgeOf(limits api.Resources) api.Resources {
	if limits.CPUMilli > 0 {
		return api.Resources{CPUMilli: 1}
	}
	return api.Resources{MemoryBytes: nudgeStep - limits.MemoryBytes%nudgeStep}
}
