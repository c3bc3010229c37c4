package predict

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Known is Predict for who cannot wait: it answers from the function's table only. ok is
// false when that may not be used, or predicts nothing; of a function whose profiling has
// begun it may predict the CPU time alone. A fetch that is due is begun, so that a Predict
// that follows has less to wait for. Known is not counted as an answer.
func (c *Client) Known(ctx context.Context, name types.NamespacedName, size int64) (p Prediction, ok bool) {
	now := c.clock.Now()
	f := c.function(name, now)
	if f == nil {
		return Prediction{}, false
	}
	f.use(now)
	s := f.state.Load()
	if c.due(s, now) {
		c.refresh(ctx, name, f, size, now)
	}
	if s.table == nil || !c.usable(s, now) {
		return Prediction{}, false
	}
	p = s.table.Lookup(size)
	if p.Demand.IsZero() {
		return Prediction{CPUTime: p.CPUTime}, p.CPUTime > 0
	}
	return p, true
}
