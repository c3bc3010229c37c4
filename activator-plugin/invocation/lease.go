package invocation

import (
	"context"
	"maps"
	"time"

	"go.uber.org/zap"
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
	due := l.due()
	l.noteOutage()
	for _, node := range due {
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
	callCtx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	started := l.clock.Now()
	err := l.pool.Renew(callCtx, node, l.owner)
	l.onCall(opRenew, err, l.clock.Since(started))

	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() == nil { // a renewal that was cut short says nothing about the pool
		l.noteHealth(node, err)
	}
	if err == nil {
		delete(l.unrenewed, node)
	} else {
		l.unrenewed[node] = false
	}
}

// noteHealth notes how the renewal of a node went. The caller must hold mu.
// Only renewals tell: the deadlines of a Begin and of an End are so short that a busy machine misses them.
func (l *lifecycle) noteHealth(node string, err error) {
	if err != nil {
		l.silent[node] = err
		return
	}
	delete(l.silent, node)
	l.answered = true
}

// noteOutage logs when the pool goes away, for all nodes or for some, and when it is back. It looks once in a
// round: within one, the nodes that are back may be known before those that are away from now on.
func (l *lifecycle) noteOutage() {
	l.mu.Lock()
	defer l.mu.Unlock()
	answered := l.answered
	l.answered = false
	if l.away {
		if answered && len(l.silent) == 0 {
			l.away = false
			l.logger.Info("The pool answers again for all nodes")
		}
		return
	}
	for node, err := range l.silent {
		l.away = true
		l.logger.Warnw("The pool does not answer for some nodes, or for all; requests there run with their user allocation until it does",
			"nodes", len(l.silent), "node", node, zap.Error(err))
		return
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
	maps.DeleteFunc(l.silent, func(node string, _ error) bool { return leased[node] == 0 })
	maps.DeleteFunc(l.unrenewed, func(node string, underWay bool) bool { return !underWay && leased[node] == 0 })
	nodes = append(nodes, failed...)
	for _, node := range nodes {
		l.unrenewed[node] = true
	}
	return nodes
}
