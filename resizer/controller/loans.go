package controller

import (
	"context"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/pool"
)

// loans is what the pool says about a node's pods.
type loans struct {
	state reading
	// readAt is when the pool was last read or, if it never was, when the node was first looked at.
	readAt time.Time
	pods   map[string]pool.Balance
	needs  map[string]int64 // bytes
	raised []string         // pods that an agent which is gone may have left with more CPU than they are owed
	// agent reports whether the pool heard the node's agent when it was last read, and stale whether
	// reading it has failed since.
	agent, stale bool
	// toldAt is when the agent last reported what pods use. Until it does again, what pods need is
	// not known.
	toldAt time.Time
}

// reading is whether the pool can be read.
type reading int

const (
	neverRead reading = iota
	isRead
	lost // not read for a lease: nothing that it said stands
)

// mostMemory divides a node's memory: the quotient is the most that a pod may have beyond what it is
// owed. The pool and the agent stay within it; the check here also holds against anybody else who
// can write to Redis.
const mostMemory = 4

// memoryOf returns the least memory limit, in bytes, that the pod should have by what the pool says.
// owed is what it is owed, and node what its node has, 0 if that is not known.
func (l *loans) memoryOf(pod string, owed, node int64) int64 {
	least := max(owed+l.pods[pod].Borrowed.MemoryBytes, l.needs[pod])
	if node > 0 {
		least = min(least, owed+node/mostMemory)
	}
	return least
}

// blind reports whether the memory that pods use is unknown, and has not been unknown long enough to
// lower their limits all the same.
func (l *loans) blind(now time.Time) bool {
	return (!l.agent || l.stale) && now.Sub(l.toldAt) < memoryBlind
}

// read updates n from the pool. When the pool cannot be read, what was read last stands for one
// lease, which is as long as Redis keeps it. known is false until the pool was read once, or a lease
// has passed.
func (c *Controller) read(ctx context.Context, n *node) (known bool) {
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	log := logf.FromContext(ctx).WithValues("node", n.name)
	state, err := c.pools.Read(ctx, n.name)
	now, l := c.clock.Now(), &n.loans
	if err == nil {
		if l.state == lost {
			log.Info("the pool can be read again")
		}
		*l = loans{state: isRead, readAt: now, pods: state.Pods, needs: state.Needs, raised: state.Raised, agent: state.Agent != "", toldAt: l.toldAt}
		if l.agent {
			l.toldAt = now
		}
		return true
	}
	c.metrics.poolFailed(ctx, "read")
	l.stale = true
	if l.state != lost && now.Sub(l.readAt) >= pool.LeaseTTL {
		*l = loans{state: lost, readAt: l.readAt, toldAt: l.toldAt}
		log.Error(err, "the pool could not be read for the length of a lease: no memory limit is raised, and limits go back to what is owed if this lasts", "after", memoryBlind)
	} else {
		log.V(1).Info("reading the pool failed", "error", err.Error())
	}
	return l.state != neverRead
}
