package invocation

import (
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// ranks says whether pods are ranked by what is in flight in them, and lend no CPU.
func (m *Manager) ranks(mode api.Mode, namespace, node string) bool {
	return mode != api.ModeObserve && m.settings.Source(namespace, node) == api.SourceNode
}

// predictable says whether a prediction tells something of an invocation that for this
// reason can neither lend nor borrow.
func (r reason) predictable() bool { return r != reasonUpgrade && r != reasonCopy }

// ranked is what can be lent and borrowed where the CPU comes from the node. A pod that takes several
// invocations lends no memory there: it would have to be told what each of them needs. A quick one
// is over so soon that hardly any like it is told of: what it could lend of its memory is given up
// for that. What a container needs to start up is not predicted.
func (v volumes) ranked(p predict.Prediction, concurrency int, starting bool) (left volumes, quick bool) {
	v.surplus.CPUMilli, v.want.CPUMilli = 0, 0
	if concurrency > 1 {
		v.surplus = api.Resources{}
	}
	if !starting && 0 < p.CPUTime && p.CPUTime < pool.QuickCPU && v.want.IsZero() {
		return volumes{}, true
	}
	return v, false
}
