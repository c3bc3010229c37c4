package pool

import "context"

// Waiter waits for changes of a node. Not for concurrent use.
type Waiter struct{ intents cursor }

// Intents makes a Waiter for the balances of a node, and for what is ranked there. It
// holds a connection while it waits.
func (r *Redis) Intents(node string) *Waiter {
	return &Waiter{cursor{client: r.waits, streams: []string{intentsStream(node), rankedStream(node)}}}
}

// Balances is Intents for the balances alone, which change with few of the requests where
// what is ranked changes with each.
func (r *Redis) Balances(node string) *Waiter {
	return &Waiter{cursor{client: r.waits, streams: []string{intentsStream(node)}}}
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
		if err != nil || len(entries) > 0 {
			return err
		}
	}
}
