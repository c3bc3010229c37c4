package invocation

import (
	"time"

	"libra.dev/libra/pkg/api"
)

// minRanked is the least CPU time for which a weight comes in time: until it is written,
// Redis, the agent and the kernel take milliseconds.
const minRanked = 5 * time.Millisecond

// ranks says whether pods are ranked by what is in flight in them, and lend no CPU.
func (m *Manager) ranks(mode api.Mode, namespace, node string) bool {
	return mode != api.ModeObserve && m.settings.Source(namespace, node) == api.SourceNode
}

// rank says whether an invocation is to be ranked where pods are, and by which CPU time;
// 0 is one that is not known. One that is over before it could be is not, unless its
// container may still have to start up, which is not predicted. It wakes no agent, for
// thousands a second may come; what its pod uses all the same the agent sees.
func rank(predicted time.Duration, allowed volumes, why reason) (ranked bool, cpuTime time.Duration) {
	short := 0 < predicted && predicted < minRanked
	if short && allowed == (volumes{}) && why != reasonColdStart && why != reasonFirst {
		return false, 0
	}
	return true, predicted
}

// predictable says whether a prediction tells something of an invocation that for this
// reason can neither lend nor borrow.
func (r reason) predictable() bool { return r != reasonUpgrade && r != reasonCopy }

// withoutCPU is what can be lent where the CPU comes from the node.
func (v volumes) withoutCPU() volumes {
	v.surplus.CPUMilli, v.want.CPUMilli = 0, 0
	return v
}
