package invocation

import (
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// crowd are the invocations in a pod of which the pool is not told one by one: because they are
// beyond the bounds, or because it would do nothing for them. One flight stands for them all: it
// leaves nothing of its pod, so that the pod lends nothing while it is there and nobody else in
// it counts as alone. A pod has one at a time, until the pool has answered its End, so that what
// is kept for crowds is bounded, too.
type crowd struct {
	rev    types.NamespacedName
	node   string
	newest pool.Invocation // of those that have joined
	in     int
	// abandoned says that the pod may go on computing for one that has left, which the pool is to be told.
	abandoned bool
	flight    *flight
	finished  bool // the flight
}

// join makes an invocation one of its pod's crowd until it leaves, which is told whether the pod
// may go on computing for it.
func (l *lifecycle) join(rev types.NamespacedName, node string, inv pool.Invocation) (leave func(abandoned bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.crowds[inv.Pod]
	if c == nil {
		c = &crowd{rev: rev, node: node, newest: inv}
		l.crowds[inv.Pod] = c
		l.standIn(c)
	}
	c.newest = inv
	c.in++
	return func(abandoned bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.in--
		c.abandoned = c.abandoned || abandoned
		if c.in == 0 && !c.finished {
			c.finish()
		}
	}
}

// standIn starts the flight of a crowd. It presumes that mu is held.
func (l *lifecycle) standIn(c *crowd) {
	c.flight = l.startAnyway(c.rev, c.node, pool.Invocation{
		ID: c.newest.ID, Function: c.newest.Function, Configuration: c.newest.Configuration, Pod: c.newest.Pod, Domain: c.newest.Domain,
		Size: api.UnknownSize, Allocation: c.newest.Allocation, Concurrency: c.newest.Concurrency, Ranked: c.newest.Ranked,
	})
	c.flight.besideUntold, c.finished = true, false
}

// finish ends the crowd's flight. It presumes that mu is held.
func (c *crowd) finish() {
	c.finished, c.flight.abandoned, c.abandoned = true, c.abandoned, false
	c.flight.finishNow(0)
}

// forgetCrowd is told that a flight is over, and starts another for those that have joined since
// it was finished, or left by then in a way that the pool is to be told. It presumes that mu is held.
func (l *lifecycle) forgetCrowd(f *flight) {
	switch c := l.crowds[f.inv.Pod]; {
	case c == nil || c.flight != f:
	case c.in > 0:
		l.standIn(c)
	case c.abandoned:
		l.standIn(c)
		c.finish()
	default:
		delete(l.crowds, f.inv.Pod)
	}
}
