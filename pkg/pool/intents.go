package pool

import "context"

// Waiter waits for changes of a node's balances, and of what is ranked on it. Not for
// concurrent use.
type Waiter struct {
	intents cursor
}

// Intents makes a Waiter for a node. It holds a connection while it waits.
func (r *Redis) Intents(node string) *Waiter {
	return &Waiter{intents: cursor{client: r.waits, stream: intentsStream(node)}}
}

// Wait returns nil when a pod's balance has changed, or a ranked invocation has begun or
// ended, since it last did. What changed is for Read to tell. The first Wait returns at once, because what
// changed before it is unknown. When ctx ends, Wait returns its error within two
// seconds.
func (w *Waiter) Wait(ctx context.Context) error {
	if moved, err := w.intents.seek(ctx); moved {
		return err
	}
	for {
		entries, err := w.intents.next(ctx)
		if err != nil || len(entries) > 0 {
			return err
		}
	}
}
