package agent

import (
	"context"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

const (
	// backOffMax is short, because invocations that end meanwhile are not observed.
	backOffMax = 2 * time.Second

	// heardLength is how much news can wait for the reflex, which never takes long.
	// Whatever it misses it finds in the next state.
	heardLength = 64
)

// Watcher reports what happens on the node.
type Watcher interface {
	// Next waits until something has happened since it last returned.
	Next(ctx context.Context) (pool.Events, error)
	// Skipped returns how many records Next could not read.
	Skipped() int64
}

// heard is what the agent heard at one time: which invocations began and ended.
type heard struct {
	at    time.Time
	begun []pool.Begun
	ended []api.Ended
}

// watch passes on what happens on the node, and measures invocations as they end.
func (a *Agent) watch(ctx context.Context) {
	log := logf.FromContext(ctx)
	late := false
	var unreadable int64
	retry := backoff.Delay{Min: backoff.Min, Max: backOffMax}
	for ctx.Err() == nil {
		events, err := a.watcher.Next(ctx)
		now := a.clock.Now()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.metrics.redisFailed(ctx, "watch")
			if !retry.Failing() {
				log.Error(err, "could not follow the node's events; reading its state once a second until that succeeds")
			}
			late = true
			backoff.Pause(ctx, a.clock, retry.Next())
			continue
		}
		retry.Reset()
		if events.Changed || late || !a.tell(heard{now, events.Begun, events.Ended}) {
			signal(a.link.woken)
		}
		a.metrics.ended(ctx, resultUnreadable, a.watcher.Skipped()-unreadable)
		unreadable = a.watcher.Skipped()
		for _, e := range events.Ended {
			a.metrics.ended(ctx, a.observe(ctx, e, now, late), 1)
		}
		late = late && events.Behind
	}
}

// tell passes on to the reflex what was heard. It returns false if too much waits there
// already.
func (a *Agent) tell(h heard) bool {
	if len(h.begun) == 0 && len(h.ended) == 0 {
		return true
	}
	select {
	case a.reflex.heard <- h:
		return true
	default:
		return false
	}
}
