package invocation

import (
	"context"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	renewEvery   = time.Second
	renewTimeout = 800 * time.Millisecond
	// maxRenewals bounds how many nodes are renewed at a time. A renewal that has gone unanswered
	// for slowAfter no longer counts; each node has one at most.
	maxRenewals = 16
	slowAfter   = 50 * time.Millisecond
)

// renewLeases keeps this activator's invocations and idle donors in the pool, on every
// node that has some, until ctx is done.
func (l *lifecycle) renewLeases(ctx context.Context) {
	defer l.renewals.Wait()
	ticker := l.clock.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			l.renew(ctx)
		}
	}
}

// renew renews every node once. Nodes whose shard hangs delay the others by slowAfter. From then on
// they come after the others.
func (l *lifecycle) renew(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(maxRenewals)
	for _, node := range l.due() {
		g.Go(func() error {
			answered := make(chan struct{})
			l.renewals.Go(func() {
				defer close(answered)
				l.renewOne(ctx, node)
			})
			select {
			case <-answered:
			case <-l.clock.After(slowAfter):
			}
			return nil
		})
	}
	g.Wait()
}

func (l *lifecycle) renewOne(ctx context.Context, node string) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	started := l.clock.Now()
	err := l.pool.Renew(ctx, node, l.owner)
	l.onCall(opRenew, err, l.clock.Since(started))
	l.noteHealth(err)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		delete(l.unrenewed, node)
	} else {
		l.unrenewed[node] = false
	}
}

// due returns the nodes that have invocations or idle donors, except those whose renewal is still
// under way. Nodes that answered their last renewal come first.
func (l *lifecycle) due() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	maps.DeleteFunc(l.idle, func(_ string, until time.Time) bool { return !now.Before(until) })
	leased := maps.Clone(l.nodes)
	for node := range l.idle {
		leased[node]++
	}
	var nodes, failed []string
	for node := range leased {
		switch underWay, unrenewed := l.unrenewed[node]; {
		case underWay:
			continue
		case unrenewed:
			failed = append(failed, node)
		default:
			nodes = append(nodes, node)
		}
	}
	maps.DeleteFunc(l.unrenewed, func(node string, underWay bool) bool { return !underWay && leased[node] == 0 })
	nodes = append(nodes, failed...)
	for _, node := range nodes {
		l.unrenewed[node] = true
	}
	return nodes
}
