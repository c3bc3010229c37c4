package invocation

import (
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// crowd is the invocations in a pod that are not reported to the pool one by one, because they exceed the
// bounds or because the pool would do nothing for them. One flight stands for them all. It leaves nothing
// of its pod to lend, so the pod lends nothing during the flight, and no other invocation there counts as
// alone. A pod has one such flight at a time, until the pool has answered its End, so that the memory for
// crowds is bounded, too.
type crowd struct {
	rev    types.NamespacedName
	node   string
	newest pool.Invocation // the last to join
	in     int
	// abandoned says that the pod may go on computing for an invocation that has left, which the pool has
	// to be told.
	abandoned bool
	flight    *flight
	finished  bool // whether the flight is
}

// join adds an invocation to its pod's crowd until leave is called. abandoned says that the pod may go on
// computing for it.
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

// standIn starts the flight of a crowd. The caller must hold mu.
func (l *lifecycle) standIn(c *crowd) {
	c.flight = l.startAnyway(c.rev, c.node, pool.Invocation{
		ID: c.newest.ID, Function: c.newest.Function, Configuration: c.newest.Configuration, Pod: c.newest.Pod, Domain: c.newest.Domain,
		Size: api.UnknownSize, Allocation: c.newest.Allocation, Concurrency: c.newest.Concurrency, Ranked: c.newest.Ranked,
	})
	c.flight.besideUntold, c.finished = true, false
}

// finish ends the crowd's flight. The caller must hold mu.
func (c *crowd) finish() {
	c.finished, c.flight.abandoned, c.abandoned = true, c.abandoned, false
	c.flight.finishNow(0)
}

// forgetCrowd drops the crowd of a flight that is over. It starts another flight instead if invocations
// have joined since the flight was finished and are still there, or were abandoned meanwhile. The caller
// must hold mu.
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
