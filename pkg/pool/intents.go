package pool

import "context"

// Waiter waits for changes of a node's balances. Not for concurrent use.
type Waiter struct{ intents cursor }

// Balances makes a Waiter for a node. It holds a connection while it waits.
func (r *Redis) Balances(node string) *Waiter {
	return &Waiter{cursor{client: r.waits, streams: []string{intentsStream(node)}}}
}

// Wait returns nil when a pod's balance has changed since it last did. What changed is for
// Read to tell. The first Wait returns at once, because what changed before it is unknown.
// When ctx ends, Wait returns its error within two seconds.
func (w *Waiter) Wait(ctx context.Context) error {
	if moved, err := w.intents.seek(ctx); moved {
		return err
	}
	for {
		entries, err := w.intents.next(ctx)
		if err != nil || entries != nil {
			return err
		}
	}
}
