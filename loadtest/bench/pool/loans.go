package main

import (
	"context"
	"sync"
	"time"

	"libra.dev/libra/pkg/pool"
)

// loans tracks what invocations borrow from begin to end: what a node can lend at first is worth less if its donors
// end soon, and more if others begin. It changes only when something begins or ends on a node.
type loans struct {
	mu sync.Mutex
	of map[string]map[string]*loan // by node and pod, which has one invocation at a time
}

type loan struct {
	read  time.Time // in the pool's time
	since time.Time
	milli int64
	sum   int64 // in milli CPU times milliseconds, until since
}

func newLoans() *loans { return &loans{of: map[string]map[string]*loan{}} }

func (l *loans) begin(node, pod string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[node] == nil {
		l.of[node] = map[string]*loan{}
	}
	l.of[node][pod] = &loan{since: time.Now()}
}

// end returns the total that was borrowed, in milli CPU times milliseconds.
func (l *loans) end(node, pod string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of[node][pod]
	a.count(time.Now())
	delete(l.of[node], pod)
	return a.sum
}

func (a *loan) count(now time.Time) {
	a.sum += a.milli * now.Sub(a.since).Milliseconds()
	a.since = now
}

// changed reads what is borrowed on a node, now that something has begun or ended there.
func (l *loans) changed(ctx context.Context, pools *pool.Redis, node string) error {
	l.mu.Lock()
	borrowers := len(l.of[node])
	l.mu.Unlock()
	if borrowers == 0 {
		return nil
	}
	state, err := pools.Read(ctx, node)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for pod, a := range l.of[node] {
		if !state.Now.Before(a.read) {
			a.count(now)
			a.read, a.milli = state.Now, state.Pods[pod].Borrowed.CPUMilli
		}
	}
	return nil
}
