package invocation

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// ledger is a pool that checks calls on their way to another pool: each
// invocation has one answered End, which comes after its Begin and is the last
// call for it.
type ledger struct {
	pool.Pool

	mu    sync.Mutex
	begun map[string]int // Begins sent, by invocation
	ended map[string]int // Ends answered
	found int            // Ends whose invocation the pool knew
	wrong []string
}

func newLedger(p pool.Pool) *ledger {
	return &ledger{Pool: p, begun: make(map[string]int), ended: make(map[string]int)}
}

func (l *ledger) Begin(ctx context.Context, node string, inv pool.Invocation) (api.Resources, error) {
	l.noteBegin(inv)
	return l.Pool.Begin(ctx, node, inv)
}

func (l *ledger) BeginAfter(ctx context.Context, node string, ended []pool.Ending, inv pool.Invocation) ([]pool.Outcome, api.Resources, error) {
	l.noteBegin(inv)
	outcomes, borrowed, err := l.Pool.BeginAfter(ctx, node, ended, inv)
	for i, e := range ended {
		var outcome pool.Outcome
		if err == nil {
			outcome = outcomes[i]
		}
		l.noteEnd(e, outcome, err)
	}
	return outcomes, borrowed, err
}

func (l *ledger) End(ctx context.Context, node string, e pool.Ending) (pool.Outcome, error) {
	outcome, err := l.Pool.End(ctx, node, e)
	l.noteEnd(e, outcome, err)
	return outcome, err
}

func (l *ledger) noteBegin(inv pool.Invocation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun[inv.ID]++
	if l.ended[inv.ID] > 0 {
		l.wrong = append(l.wrong, inv.ID+" begins after its End")
	}
}

func (l *ledger) noteEnd(e pool.Ending, outcome pool.Outcome, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun[e.ID] == 0 {
		l.wrong = append(l.wrong, e.ID+" ends and never began")
	}
	if err == nil {
		l.ended[e.ID]++
	}
	if outcome.Found {
		l.found++
	}
}

// mistakes are what is wrong when all invocations are over.
func (l *ledger) mistakes(nodes ...string) []string {
	l.mu.Lock()
	wrong := l.wrong
	for id := range l.begun {
		if l.ended[id] != 1 {
			wrong = append(wrong, fmt.Sprintf("of %s %d Ends are answered, want 1", id, l.ended[id]))
		}
	}
	l.mu.Unlock()
	for _, node := range nodes {
		state, err := l.Read(context.Background(), node)
		if err != nil || state.Begun != 0 || len(state.Pods) != 0 {
			wrong = append(wrong, fmt.Sprintf("on %s there are left %d invocations, and balances %v (%v)", node, state.Begun, state.Pods, err))
		}
	}
	return wrong
}

// check is for when n invocations are over.
func (l *ledger) check(t *testing.T, n int) {
	t.Helper()
	for _, m := range l.mistakes("node-a") {
		t.Error(m)
	}
	if len(l.begun) != n || l.found != n {
		t.Errorf("%d invocations began and the pool ended %d that it knew, want %d", len(l.begun), l.found, n)
	}
}
