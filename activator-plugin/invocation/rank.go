package invocation

import (
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// ranks reports whether pods are ranked by what is in flight in them, and lend no CPU.
func (m *Manager) ranks(mode api.Mode, namespace, node string) bool {
	return mode != api.ModeObserve && m.settings.Source(namespace, node) == api.SourceNode
}

// predictable reports whether a prediction says anything about an invocation that can neither lend
// nor borrow for this reason.
func (r reason) predictable() bool { return r != reasonUpgrade && r != reasonCopy }

// ranked returns what can be lent and borrowed under the source node. A pod that takes several
// invocations lends no memory there: the pool would have to be told what each of them needs. A quick
// invocation lends none, either, because hardly any like it is reported. None is quick while its
// container may be starting up: the prediction does not cover that.
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
