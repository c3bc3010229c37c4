package invocation

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const testTimeout = 30 * time.Second

// recorder is a pool that notes its calls. The hooks, if any, run before a
// call is noted and return its error.
type recorder struct {
	pool.Pool
	beginHook func(ctx context.Context, inv pool.Invocation) error
	endHook   func(ctx context.Context, e pool.Ending) error

	mu      sync.Mutex
	calls   []string // operation, node and ID, or owner
	begins  []pool.Invocation
	ends    []pool.Ending
	changed chan struct{}
}

func (r *recorder) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *recorder) Begin(ctx context.Context, node string, inv pool.Invocation) (api.Resources, error) {
	var err error
	if r.beginHook != nil {
		err = r.beginHook(ctx, inv)
	}
	r.note(func() {
		r.calls = append(r.calls, "begin "+node+" "+inv.ID)
		r.begins = append(r.begins, inv)
	})
	return api.Resources{}, err
}

func (r *recorder) BeginAfter(ctx context.Context, node string, ended []pool.Ending, inv pool.Invocation) ([]pool.Outcome, api.Resources, error) {
	var err error
	if r.beginHook != nil {
		err = r.beginHook(ctx, inv)
	}
	outcomes := make([]pool.Outcome, len(ended))
	r.note(func() {
		call := "begin " + node + " " + inv.ID + " after"
		for i, e := range ended {
			call += " " + e.ID
			outcomes[i].Found = true
		}
		r.calls = append(r.calls, call)
		r.begins = append(r.begins, inv)
		r.ends = append(r.ends, ended...)
	})
	if err != nil {
		return nil, api.Resources{}, err
	}
	return outcomes, api.Resources{}, nil
}

func (r *recorder) End(ctx context.Context, node string, e pool.Ending) (pool.Outcome, error) {
	var err error
	if r.endHook != nil {
		err = r.endHook(ctx, e)
	}
	r.note(func() {
		r.calls = append(r.calls, "end "+node+" "+e.ID)
		r.ends = append(r.ends, e)
	})
	return pool.Outcome{Found: true}, err
}

func (r *recorder) Renew(_ context.Context, node, owner string) error {
	r.note(func() { r.calls = append(r.calls, "renew "+node+" "+owner) })
	return nil
}

// openNode lets the pods of node-a lend and borrow for one pool.LeaseTTL.
func openNode(t testing.TB, p pool.Pool, pods ...string) {
	t.Helper()
	if err := heartbeat(p, pods...); err != nil {
		t.Fatal("opening node-a:", err)
	}
}

func heartbeat(p pool.Pool, pods ...string) error {
	state, err := p.Read(context.Background(), "node-a")
	if err != nil {
		return err
	}
	hb := pool.Heartbeat{Agent: "agent", Epoch: state.Epoch, Whole: true, Lendable: res(1<<20, 1<<20), Pods: map[string]int64{}, Rested: pods, RestedAt: state.Now}
	for _, pod := range pods {
		hb.Pods[pod] = 0
	}
	open, err := p.Heartbeat(context.Background(), "node-a", hb)
	if err == nil && !open {
		err = errors.New("the pool says that it is closed")
	}
	return err
}

// await waits for n calls, and returns them.
func (r *recorder) await(t *testing.T, n int) []string {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		r.mu.Lock()
		calls := slices.Clone(r.calls)
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		if len(calls) >= n {
			return calls
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("The pool was called %d times, want %d: %q", len(calls), n, calls)
		}
	}
}
