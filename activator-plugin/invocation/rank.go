package invocation

import (
	"time"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

// minRanked is the least CPU time for which a weight comes in time: until it is written,
// Redis, the agent and the kernel take milliseconds.
const minRanked = 5 * time.Millisecond

// ranks says whether pods are ranked by what is in flight in them, and lend no CPU.
func (m *Manager) ranks(mode api.Mode, namespace, node string) bool {
	return mode != api.ModeObserve && m.settings.Source(namespace, node) == api.SourceNode
}

// tooShort says that an invocation is over before it could be ranked, and would not be
// told of for another reason. It wakes no agent, for thousands a second may come; what its
// pod uses all the same the agent sees. What a container needs to start up is not predicted.
func (m *Manager) tooShort(p predict.Prediction, allowed volumes, req *request, pod target) bool {
	return 0 < p.CPUTime && p.CPUTime < minRanked && allowed == (volumes{}) && m.whyStarting(req, pod) == reasonNone
}

// predictable says whether a prediction tells something of an invocation that for this
// reason can neither lend nor borrow.
func (r reason) predictable() bool { return r != reasonUpgrade && r != reasonCopy }

// withoutCPU is what can be lent where the CPU comes from the node.
func (v volumes) withoutCPU() volumes {
	v.surplus.CPUMilli, v.want.CPUMilli = 0, 0
	return v
}
