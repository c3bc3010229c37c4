package pool

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Waiter waits for changes of a node. Not for concurrent use.
type Waiter struct {
	intents cursor
	// ranked says that it also waits for what is ranked.
	ranked bool
}

// Intents makes a Waiter for the balances of a node, and for what is ranked there. It
// holds a connection while it waits.
func (r *Redis) Intents(node string) *Waiter {
	return &Waiter{intents: cursor{client: r.waits, stream: intentsStream(node)}, ranked: true}
}

// Balances is Intents for the balances alone, which change with few of the requests where
// what is ranked changes with each.
func (r *Redis) Balances(node string) *Waiter {
	w := r.Intents(node)
	w.ranked = false
	return w
}

// Wait returns nil when a pod's balance has changed, or a ranked invocation has begun or
// ended, since it last did. What changed is for Read to tell. The first Wait returns at
// once, because what changed before it is unknown. When ctx ends, Wait returns its error
// within two seconds.
func (w *Waiter) Wait(ctx context.Context) error {
	if moved, err := w.intents.seek(ctx); moved {
		return err
	}
	for {
		entries, err := w.intents.next(ctx)
		if err != nil || slices.ContainsFunc(entries, w.concerns) {
			return err
		}
	}
}

func (w *Waiter) concerns(intent redis.XMessage) bool {
	_, rankedOnly := intent.Values["ranked"]
	return w.ranked || !rankedOnly
}
