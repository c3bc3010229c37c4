package pool

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
)

var _ Pool = (*Memory)(nil)

// Memory is a Pool within one process. It says in Go what functions.lua does in
// Redis, and appends no intents or records.
type Memory struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	nodes map[string]*memoryNode
}

// NewMemory makes an empty pool that tells time by clk.
func NewMemory(clk clock.PassiveClock) *Memory {
	return &Memory{clock: clk, nodes: make(map[string]*memoryNode)}
}

// Times are in milliseconds, as in Redis.
type memoryNode struct {
	openUntil  int64
	leases     map[string]int64 // when an owner last renewed
	tombstones map[string]int64 // until when an end stands, by invocation
	begun      map[string]*begun
	loans      map[loan]api.Resources
}

type begun struct {
	Invocation
	expires                int64
	alone                  bool
	spare                  api.Resources // put into the pool and not lent
	mostLent, mostBorrowed api.Resources
}

type loan struct {
	donor, borrower *begun
}

// volumes are the resources, each of which is lent by itself.
var volumes = []func(*api.Resources) *int64{
	func(r *api.Resources) *int64 { return &r.CPUMilli },
	func(r *api.Resources) *int64 { return &r.MemoryBytes },
}

// with calls f with the node and the time, while nobody else uses the pool.
func (m *Memory) with(ctx context.Context, node string, f func(n *memoryNode, now int64)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkNode(node); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.nodes[node]
	if !ok {
		n = &memoryNode{
			leases:     make(map[string]int64),
			tombstones: make(map[string]int64),
			begun:      make(map[string]*begun),
			loans:      make(map[loan]api.Resources),
		}
		m.nodes[node] = n
	}
	f(n, m.clock.Now().UnixMilli())
	return nil
}

// Begin implements Pool.
func (m *Memory) Begin(ctx context.Context, node string, inv Invocation) (borrowed api.Resources, err error) {
	if err := inv.check(); err != nil {
		return api.Resources{}, err
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		borrowed = n.begin(now, inv)
	})
	return borrowed, err
}

// End implements Pool.
func (m *Memory) End(ctx context.Context, node string, e Ending) (o Outcome, err error) {
	if err := e.check(); err != nil {
		return Outcome{}, err
	}
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		b, ok := n.begun[e.ID]
		if !ok {
			n.bury(now, e.ID)
			return
		}
		n.release(now, b)
		n.feed(now, b.Domain)
		o = Outcome{Found: true, Alone: b.alone && !e.Late, Lent: b.mostLent, Borrowed: b.mostBorrowed}
	})
	return o, err
}

// Renew implements Pool.
func (m *Memory) Renew(ctx context.Context, node, owner string) error {
	if err := checkName("owner", owner); err != nil {
		return err
	}
	return m.with(ctx, node, func(n *memoryNode, now int64) {
		n.lapse(now, owner)
		n.leases[owner] = now
	})
}

// Open implements Pool.
func (m *Memory) Open(ctx context.Context, node string) error {
	return m.with(ctx, node, func(n *memoryNode, now int64) {
		n.openUntil = now + LeaseTTL.Milliseconds()
	})
}

// Read implements Pool.
func (m *Memory) Read(ctx context.Context, node string) (s State, err error) {
	err = m.with(ctx, node, func(n *memoryNode, now int64) {
		n.reap(now)
		n.forget(now)
		s = n.state(now)
	})
	return s, err
}

func (n *memoryNode) begin(now int64, inv Invocation) api.Resources {
	n.lapse(now, inv.Owner)
	if n.tombstones[inv.ID] > now {
		return api.Resources{}
	}
	if b, ok := n.begun[inv.ID]; ok {
		_, borrowed := n.balance(b)
		return borrowed
	}

	n.leases[inv.Owner] = now

	b := &begun{Invocation: inv, expires: now + wholeMillis(inv.Duration), alone: true}
	for _, other := range n.begun {
		if other.Pod == b.Pod {
			n.withdraw(other)
			other.alone, b.alone = false, false
		}
	}
	n.begun[b.ID] = b

	if n.open(now) {
		n.take(now, b)
		if b.alone {
			b.spare = inv.Surplus
		}
	}
	n.feed(now, b.Domain)
	_, borrowed := n.balance(b)
	return borrowed
}

// open says whether the node lends. A mark from further ahead than a lease was
// made before the clock went back.
func (n *memoryNode) open(now int64) bool {
	return now < n.openUntil && n.openUntil <= now+LeaseTTL.Milliseconds()
}

// take lends b what it still wants, from the donors that last as long as it needs.
func (n *memoryNode) take(now int64, b *begun) {
	_, borrowed := n.balance(b)
	for _, of := range volumes {
		want := *of(&b.Want) - *of(&borrowed)
		for _, d := range n.latestFirst(b.Domain) {
			// A donor is the only one in its pod: only b itself is to be left out.
			if d == b || d.expires < now+b.leastRemaining() {
				continue
			}
			amount := min(want, *of(&d.spare))
			if amount == 0 {
				continue
			}
			l := n.loans[loan{d, b}]
			*of(&l) += amount
			n.loans[loan{d, b}] = l
			*of(&d.spare) -= amount
			want -= amount

			lent, _ := n.balance(d)
			d.mostLent = d.mostLent.Max(lent)
		}
	}
	_, borrowed = n.balance(b)
	b.mostBorrowed = b.mostBorrowed.Max(borrowed)
}

// feed comes after all that may leave surplus in the pool or a want unmet. Those of
// the domain who want more take it, the last to end first.
func (n *memoryNode) feed(now int64, domain string) {
	if !n.open(now) {
		return
	}
	for _, b := range n.latestFirst(domain) {
		if b.expires >= now+b.leastRemaining() {
			n.take(now, b)
		}
	}
}

// latestFirst are the domain's invocations, the last to end first.
func (n *memoryNode) latestFirst(domain string) []*begun {
	all := slices.SortedFunc(maps.Values(n.begun), func(x, y *begun) int {
		return cmp.Or(cmp.Compare(y.expires, x.expires), strings.Compare(y.ID, x.ID))
	})
	return slices.DeleteFunc(all, func(b *begun) bool { return b.Domain != domain })
}

func (b *begun) leastRemaining() int64 { return max(ceilMillis(b.MinRemaining), 1) }

func (n *memoryNode) balance(b *begun) (lent, borrowed api.Resources) {
	for l, volume := range n.loans {
		if l.donor == b {
			lent = lent.Add(volume)
		}
		if l.borrower == b {
			borrowed = borrowed.Add(volume)
		}
	}
	return lent, borrowed
}

// withdraw takes all that b put into the pool out of it, lent or not.
func (n *memoryNode) withdraw(b *begun) {
	maps.DeleteFunc(n.loans, func(l loan, _ api.Resources) bool { return l.donor == b })
	b.spare = api.Resources{}
}

func (n *memoryNode) giveBack(b *begun) {
	for l, volume := range n.loans {
		if l.borrower == b {
			l.donor.spare = l.donor.spare.Add(volume)
			delete(n.loans, l)
		}
	}
}

func (n *memoryNode) release(now int64, b *begun) {
	n.withdraw(b)
	n.giveBack(b)
	delete(n.begun, b.ID)
	n.bury(now, b.ID)
}

// bury lets an end stand for one lease time, whatever was known of the
// invocation: a Begin that arrives late or twice must not bring it to life with
// nobody to end it. functions.lua says why that is long enough.
func (n *memoryNode) bury(now int64, id string) {
	n.forget(now)
	n.tombstones[id] = now + LeaseTTL.Milliseconds()
}

func (n *memoryNode) forget(now int64) {
	maps.DeleteFunc(n.tombstones, func(_ string, until int64) bool { return until <= now })
}

func (n *memoryNode) reap(now int64) {
	for owner, renewed := range n.leases {
		if renewed > now {
			// The clock went back: without this the lease would last as long as that.
			n.leases[owner] = now
		}
	}
	n.lapse(now, slices.Collect(maps.Keys(n.leases))...)
}

// lapse ends what the owners have whose leases have run out. It comes before
// anything that renews a lease: what has run out in an outage must not come back
// to life after it.
func (n *memoryNode) lapse(now int64, owners ...string) {
	domains := make(map[string]struct{})
	for _, owner := range owners {
		renewed, ok := n.leases[owner]
		if !ok || renewed+LeaseTTL.Milliseconds() > now {
			continue
		}
		delete(n.leases, owner)
		for _, b := range n.begun {
			if b.Owner == owner {
				n.release(now, b)
				domains[b.Domain] = struct{}{}
			}
		}
	}
	for domain := range domains {
		n.feed(now, domain)
	}
}

func (n *memoryNode) state(now int64) State {
	s := State{Pods: make(map[string]Balance), Begun: len(n.begun)}
	for _, b := range n.begun {
		if b.expires > now {
			s.Available = s.Available.Add(b.spare)
		}
	}
	for l, volume := range n.loans {
		donor := s.Pods[l.donor.Pod]
		donor.Lent = donor.Lent.Add(volume)
		s.Pods[l.donor.Pod] = donor

		borrower := s.Pods[l.borrower.Pod]
		borrower.Borrowed = borrower.Borrowed.Add(volume)
		s.Pods[l.borrower.Pod] = borrower
	}
	return s
}
