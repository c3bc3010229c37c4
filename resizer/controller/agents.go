package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
)

const (
	// repairAfter is how long a node's agent must not have been ready before its pods are repaired.
	// An agent on its way back puts everything right by itself.
	repairAfter = 1500 * time.Millisecond
	// borrowersFirst is how long the repair of other pods waits for those that may hold too much,
	// and so how long the kubelet has for the latter.
	borrowersFirst = 2 * time.Second

	// startSlack is how much younger than this process a pod may seem and still count as older: the
	// two times are from different machines' clocks.
	startSlack = time.Minute
)

// agentWatch is what the controller knows about a node's agent.
type agentWatch struct {
	state agentState
	since time.Time // when the state began
	seen  bool      // one has worked here
}

// agentState says what to do because of an agent.
type agentState int

const (
	agentUnknown  agentState = iota
	agentReady               // nothing
	agentNotReady            // it may be back in a moment
	agentGone                // its pods are repaired, or have been
)

// watchAgent records whether the node's agent is ready. When it has not been for a while, the
// kubelet has to write again every pod that the agent may have changed, first those that the pool
// says it may have raised. The readiness of the agent's pod decides: it needs no Redis, costs
// nothing while nothing happens, and a kubelet that could not report it could not repair, either.
// But a kubelet on a busy node may be wrong, so an agent that the pool hears counts as there.
func (c *Controller) watchAgent(ctx context.Context, n *node) error {
	var agents corev1.PodList
	if err := c.kube.List(ctx, &agents, client.InNamespace(settings.AgentNamespace), client.MatchingFields{nodeNameField: n.name}); err != nil {
		return fmt.Errorf("listing the agents of node %s: %w", n.name, err)
	}
	ready := slices.ContainsFunc(agents.Items, func(pod corev1.Pod) bool { return api.PodReady(&pod) })
	c.metrics.silent(n.name, !ready)
	now, a := c.clock.Now(), &n.agent
	a.seen = a.seen || ready || n.loans.agent // an agent works before it is ready, and may never be
	switch {
	case ready && a.state != agentReady:
		*a = agentWatch{agentReady, now, true}
		for _, m := range n.pods {
			m.repair.cancel()
		}
	case !ready && (a.state == agentReady || a.state == agentUnknown || a.state == agentGone && n.loans.agent):
		// The last: another agent has begun to work, and may end before it was ever ready.
		a.state, a.since = agentNotReady, now
	case a.state == agentNotReady && now.Sub(a.since) >= repairAfter && !n.loans.agent:
		a.state, a.since = agentGone, now
		repaired := 0
		for _, m := range n.pods {
			// A pod made since this process began, and before any agent came, has a cgroup that
			// only the kubelet has written.
			older := !m.pod.CreationTimestamp.After(c.started.Add(startSlack))
			leftAlone := m.leftAlone != "" && m.unreadSince.IsZero() // what is owed may only be read later
			if !leftAlone && (a.seen || older) && c.mayHaveChanged(m) {
				m.repair.begin(slices.Contains(n.loans.raised, m.name))
				repaired++
			}
		}
		if repaired > 0 {
			logf.FromContext(ctx).Info("the node has no ready agent: making the kubelet rewrite the cgroups of the node's pods", "node", n.name, "pods", repaired)
		}
	}
	return nil
}

// mayHaveChanged reports whether an agent may have changed the pod. In mode observe it has not,
// unless the mode was more before. This is asked once, so settings that are not known may be anything.
func (c *Controller) mayHaveChanged(m *managedPod) bool {
	return !c.live.Synced() || c.live.For(m.pod.Namespace).ModeOf(m.pod.Annotations) != api.ModeObserve || m.unobserved || actuate.Resized(m.pod)
}

// untilRepair returns how long until the agent must be looked at again.
func (a *agentWatch) untilRepair(now time.Time) time.Duration {
	if a.state == agentNotReady {
		return max(waitTick, a.since.Add(repairAfter).Sub(now))
	}
	return resync
}

// mayRepairOthers reports whether the pods that had borrowed have been repaired, or have had their
// time.
func (n *node) mayRepairOthers(now time.Time) bool {
	if now.Sub(n.agent.since) >= borrowersFirst {
		return true
	}
	for _, m := range n.pods {
		if m.repair.first && m.repair.stage != notRepaired {
			return false
		}
	}
	return true
}

const (
	// bumpMilli is the change of CPU that makes the kubelet write.
	bumpMilli = 1
	// repairTries is how often a repair that is refused is tried, repairRetry after the last time.
	// A quota may never have room for it; then nothing makes the kubelet write.
	repairTries = 3
	repairRetry = 5 * time.Second
)

// repair is the repair of a pod whose cgroup may be in any state because its agent is gone. The
// kubelet does not read limits back, and writes them only when the spec differs from what it wrote
// last. So the controller changes the spec by the smallest step, and changes it back once that is
// in force; if it did so earlier, the kubelet might see neither change. The zero value is for a pod
// that needs no repair.
type repair struct {
	stage repairStage
	first bool // it may hold what belongs to others
	tries int
	at    time.Time // of the next try
}

type repairStage int

const (
	notRepaired repairStage = iota
	repairDue
	repairBumped // the spec is a little off, and the kubelet has not written it yet
)

func (r *repair) begin(first bool) { *r = repair{stage: repairDue, first: first} }

// cancel ends a repair that has not begun. A repair that has begun is completed.
func (r *repair) cancel() {
	if r.stage == repairDue {
		*r = repair{}
	}
}

// refused puts a repair off, and in the end gives it up.
func (r *repair) refused(now time.Time) {
	if r.tries++; r.tries >= repairTries {
		*r = repair{}
		return
	}
	r.at = now.Add(repairRetry)
}

// bumped returns a CPU limit that makes the kubelet write, instead of milli. It lowers a pod that
// is at its ceiling: nothing may have more, and no quota refuses less. It also lowers a pod for
// whose raise there was no room.
func (m *managedPod) bumped(milli int64) int64 {
	if milli > m.owed.CPUMilli || m.repair.tries%2 == 1 {
		return milli - bumpMilli
	}
	return milli + bumpMilli
}
