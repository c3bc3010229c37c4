package invocation

import (
	"time"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
)

// quickCPU is the predicted CPU time below which nobody is told of an invocation under the
// source node. To tell of one costs the activator, Redis and the agent milliseconds of CPU,
// which a full node has not; and a pod of which nothing was told the agent ranks by what it
// has used, which puts so little in the first level, too.
const quickCPU = 25 * time.Millisecond

// ranks says whether pods are ranked by what is in flight in them, and lend no CPU.
func (m *Manager) ranks(mode api.Mode, namespace, node string) bool {
	return mode != api.ModeObserve && m.settings.Source(namespace, node) == api.SourceNode
}

// quick says that a ranked invocation is over so soon that it needs no rank, and that its
// memory would not be lent in time. Where its pod counts what each of several needs, that is
// told. What a container needs to start up is not predicted.
func (m *Manager) quick(p predict.Prediction, could volumes, req *request, pod target, concurrency int) bool {
	return 0 < p.CPUTime && p.CPUTime < quickCPU && could.want.IsZero() &&
		(concurrency <= 1 || could == (volumes{})) && m.whyStarting(req, pod) == reasonNone
}

// predictable says whether a prediction tells something of an invocation that for this
// reason can neither lend nor borrow.
func (r reason) predictable() bool { return r != reasonUpgrade && r != reasonCopy }

// withoutCPU is what can be lent where the CPU comes from the node.
func (v volumes) withoutCPU() volumes {
	v.surplus.CPUMilli, v.want.CPUMilli = 0, 0
	return v
}
