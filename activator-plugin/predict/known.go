package predict

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Known is Predict for callers that cannot wait: it answers only from the function's
// table. ok is false if the table may not be used or predicts nothing. For a function
// whose profiling has begun, p may have the CPU time alone. Known begins a fetch that is
// due, so that a later Predict has less to wait for. It is not counted as an answer.
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
