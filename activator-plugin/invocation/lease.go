package invocation

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	renewEvery   = time.Second
	renewTimeout = 800 * time.Millisecond
	// maxRenewals bounds how many nodes are renewed at a time.
	maxRenewals = 16
)

// renewLeases keeps this activator's invocations in the pool, on every node that
// has some, until ctx is done.
func (l *lifecycle) renewLeases(ctx context.Context) {
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

func (l *lifecycle) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(maxRenewals)
	for _, node := range l.occupied() {
		g.Go(func() error {
			started := l.clock.Now()
			err := l.pool.Renew(ctx, node, l.owner)
			l.metrics.onPoolCall(opRenew, resultOf(err), l.clock.Since(started))
			l.noteHealth(err)
			return nil
		})
	}
	g.Wait()
}

func (l *lifecycle) occupied() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := make([]string, 0, len(l.nodes))
	for node := range l.nodes {
		nodes = append(nodes, node)
	}
	return nodes
}
