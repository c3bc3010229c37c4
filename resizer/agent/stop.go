package agent

import (
	"context"
	"slices"

	"libra.dev/libra/pkg/pool"
)

// stop gives every container what it is owed, tells the pool that nobody takes part
// any more, and closes everything. ctx bounds it.
func (r *reflex) stop(ctx context.Context) {
	r.stopping = true
	r.round(ctx)
	if r.state.Epoch != "" {
		callCtx, cancel := context.WithTimeout(ctx, poolTimeout)
		last := pool.Heartbeat{Agent: r.agent, Epoch: r.state.Epoch}
		if _, err := r.link.pool.Heartbeat(callCtx, r.link.node, last); err != nil {
			r.log.Error(err, "could not tell the pool that the agent stops; the pool closes when a lease has run out")
		}
		cancel()
	}
	for {
		r.round(ctx)
		if !r.weightsOwed() && !slices.ContainsFunc(r.entries, func(e *entry) bool { return e.managed() && e.wholeSince.IsZero() }) {
			break
		}
		if ctx.Err() != nil {
			r.log.Info("stopping before all limits and weights are restored; the next agent of this node restores the rest")
			break
		}
		timer := r.clock.NewTimer(r.settings.SampleLowered)
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
	}
	r.clamps.stop(ctx)
	for _, e := range r.entries {
		e.close()
		if e.weighing.file != nil {
			e.weighing.file.Close() //nolint:errcheck // every write was checked
		}
	}
}
