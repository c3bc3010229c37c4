// Package pooltest implements the pool in Go, for tests: it does what the Redis functions do,
// within one process and without Redis. It is their executable specification. Its own tests
// check it against what must always be true of a pool, and Redis against it.
package pooltest

import (
	"context"
	"strconv"
	"sync"

	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

var _ pool.Pool = (*Memory)(nil)

// Memory is a Pool within one process. It does in Go what the library in ../lua does in Redis,
// but appends no intents or records.
type Memory struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	nodes map[string]*memoryNode
	made  int // nodes so far; each has its own epoch
}

// NewMemory returns an empty pool that tells time by clk.
func NewMemory(clk clock.PassiveClock) *Memory {
	return &Memory{clock: clk, nodes: make(map[string]*memoryNode)}
}

// with is a call of a function of the library.
func (m *Memory) with(ctx context.Context, node string, f func(n *memoryNode, now int64)) error {
	return m.look(ctx, node, func(n *memoryNode, now int64) {
		n.trim(now)
		f(n, now)
	})
}

// look calls f with the node and the time in milliseconds, while nobody else uses the pool.
func (m *Memory) look(ctx context.Context, node string, f func(n *memoryNode, now int64)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := pool.ValidateNode(node); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now().UnixMilli()
	n, ok := m.nodes[node]
	if !ok {
		m.made++
		n = newMemoryNode(now, strconv.Itoa(m.made))
		m.nodes[node] = n
	}
	f(n, now)
	return nil
}

// Begin implements pool.Pool.
func (m *Memory) Begin(ctx context.Context, node string, inv pool.Invocation) (borrowed api.Resources, err error) {
	if err := inv.Validate(); err != nil {
		return api.Resources{}, err
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		borrowed = n.begin(now, inv)
	})
	return borrowed, err
}

// End implements pool.Pool.
func (m *Memory) End(ctx context.Context, node string, e pool.Ending) (o pool.Outcome, err error) {
	if err := e.Validate(); err != nil {
		return pool.Outcome{}, err
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		o = n.end(now, e)
	})
	return o, err
}

// BeginAfter implements pool.Pool.
func (m *Memory) BeginAfter(ctx context.Context, node string, ended []pool.Ending, inv pool.Invocation) (outcomes []pool.Outcome, borrowed api.Resources, err error) {
	if err := inv.Validate(); err != nil {
		return nil, api.Resources{}, err
	}
	for _, e := range ended {
		if err := e.Validate(); err != nil {
			return nil, api.Resources{}, err
		}
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		for _, e := range ended {
			outcomes = append(outcomes, n.end(now, e))
		}
		borrowed = n.begin(now, inv)
	})
	return outcomes, borrowed, err
}

// Renew implements pool.Pool.
func (m *Memory) Renew(ctx context.Context, node, owner string) error {
	if err := pool.ValidateName("owner", owner); err != nil {
		return err
	}
	return m.with(ctx, node, func(n *memoryNode, now int64) {
		n.lapse(now, owner)
		n.leases[owner] = now
	})
}

// Heartbeat implements pool.Pool.
func (m *Memory) Heartbeat(ctx context.Context, node string, hb pool.Heartbeat) (open bool, err error) {
	if err := hb.Validate(); err != nil {
		return false, err
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		n.heartbeat(now, hb)
		open = n.open(now)
	})
	return open, err
}

// Safeguard implements pool.Pool.
func (m *Memory) Safeguard(ctx context.Context, node, pod string, idle bool) (revokedMilli int64, err error) {
	if err := pool.ValidateName("pod", pod); err != nil {
		return 0, err
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		revokedMilli = n.safeguard(now, pod, idle)
	})
	return revokedMilli, err
}

// Ask implements pool.Pool.
func (m *Memory) Ask(ctx context.Context, node, pod string, milli int64) error {
	if err := pool.ValidateAsk(pod, milli); err != nil {
		return err
	}
	return m.with(ctx, node, func(n *memoryNode, now int64) { n.ask(now, pod, milli) })
}

// Read implements pool.Pool.
func (m *Memory) Read(ctx context.Context, node string) (s pool.State, err error) {
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		n.reap(now)
		n.forget(now)
		s = n.state(now)
	})
	return s, err
}
