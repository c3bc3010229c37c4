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
	// repairAfter is how long a node's agent must not have been ready: it may be on its way
	// back, and puts everything right by itself then.
	repairAfter = 1500 * time.Millisecond
	// borrowersFirst is how long the repair of others waits for those that may hold too much,
	// and so how long the kubelet has for these.
	borrowersFirst = 2 * time.Second

	// startSlack is how much younger than this process a pod may seem and still be
	// taken for older: the clocks are two machines'.
	startSlack = time.Minute
)

// agentWatch is what is known of a node's agent.
type agentWatch struct {
	state agentState
	since time.Time // of the state
	seen  bool      // it was ready once
}

// agentState is what has to be done because of an agent.
type agentState int

const (
	agentUnknown  agentState = iota
	agentReady               // nothing
	agentNotReady            // it may be back in a moment
	agentGone                // its pods are repaired, or have been
)

// watchAgent takes in whether the node's agent is ready. When it has not been for a while,
// every pod that it may have changed is to be written again by the kubelet, those first that the
// pool says it may have raised. It is the readiness of the agent's pod that tells: it needs no
// Redis, it costs nothing while nothing happens, and a kubelet that could not tell it could not
// repair either. But a kubelet on a busy node may be wrong, so an agent that the pool hears is
// there.
func (c *Controller) watchAgent(ctx context.Context, n *node) error {
	var agents corev1.PodList
	if err := c.kube.List(ctx, &agents, client.InNamespace(settings.AgentNamespace), client.MatchingFields{nodeNameField: n.name}); err != nil {
		return fmt.Errorf("listing the agents of node %s: %w", n.name, err)
	}
	ready := slices.ContainsFunc(agents.Items, func(pod corev1.Pod) bool { return isReady(&pod) })
	c.metrics.silent(n.name, !ready)
	now, a := c.clock.Now(), &n.agent
	switch {
	case ready && a.state != agentReady:
		*a = agentWatch{agentReady, now, true}
		for _, m := range n.pods {
			m.repair.cancel()
		}
	case !ready && (a.state == agentReady || a.state == agentUnknown):
		a.state, a.since = agentNotReady, now
	case a.state == agentNotReady && now.Sub(a.since) >= repairAfter && !n.loans.agent:
		a.state, a.since = agentGone, now
		repaired := 0
		for _, m := range n.pods {
			// What was made since this process began, and before any agent came, has a
			// cgroup that only the kubelet has written.
			older := !m.pod.CreationTimestamp.After(c.started.Add(startSlack))
			if m.leftAlone == "" && (a.seen || older) && c.mayHaveChanged(m) {
				m.repair.begin(slices.Contains(n.loans.raised, m.name))
				repaired++
			}
		}
		if repaired > 0 {
			logf.FromContext(ctx).Info("the node has no agent that is ready: the kubelet is made to write its pods' cgroups again", "node", n.name, "pods", repaired)
		}
	}
	return nil
}

// mayHaveChanged says that an agent may have changed the pod: not where it only observes, unless
// it did more before.
func (c *Controller) mayHaveChanged(m *managedPod) bool {
	return c.live.For(m.pod.Namespace).ModeOf(m.pod.Annotations) != api.ModeObserve || m.unobserved || actuate.Resized(m.pod)
}

// untilRepair is how long until the agent has to be looked at again.
func (a *agentWatch) untilRepair(now time.Time) time.Duration {
	if a.state == agentNotReady {
		return max(waitTick, a.since.Add(repairAfter).Sub(now))
	}
	return resync
}

// mayRepairOthers says that those that had borrowed have been repaired, or had their time.
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
	// bumpMilli is by how much CPU is changed to have the kubelet write.
	bumpMilli = 1
	// repairTries is how often a repair that is refused is tried, repairRetry after the last
	// time. A quota may have no room for it for ever; then nothing makes the kubelet write.
	repairTries = 3
	repairRetry = 5 * time.Second
)

// repair is what is done for a pod whose cgroup an agent that is gone may have left in any
// state. The kubelet does not read limits back, and writes them only when the spec is not what
// it wrote last. So the spec is changed by as little as there is, and changed back when that is
// in force: before it, the kubelet might see neither. The zero value is of a pod that needs no
// repair.
type repair struct {
	stage repairStage
	first bool // it may hold what is others'
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

// cancel ends a repair that has not begun. One that has is ended as any.
func (r *repair) cancel() {
	if r.stage == repairDue {
		*r = repair{}
	}
}

// refused gives a repair up in the end.
func (r *repair) refused(now time.Time) {
	if r.tries++; r.tries >= repairTries {
		*r = repair{}
		return
	}
	r.at = now.Add(repairRetry)
}

// bumped is a CPU limit that makes the kubelet write in place of another. What is at its ceiling
// is lowered: nothing may have more, and no quota refuses it. So is what had no room to be
// raised.
func (m *managedPod) bumped(milli int64) int64 {
	if milli > m.owed.CPUMilli || m.repair.tries%2 == 1 {
		return milli - bumpMilli
	}
	return milli + bumpMilli
}
