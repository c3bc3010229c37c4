package controller

import (
	"context"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/pool"
)

// loans are what the pool says of a node's pods.
type loans struct {
	state reading
	// readAt is when the pool was last read; while it never was, when the node was first
	// looked at.
	readAt time.Time
	pods   map[string]pool.Balance
	needs  map[string]int64 // bytes
	raised []string         // pods that an agent which is gone may have left with more CPU than they are owed
	// agent says that the pool hears the node's agent.
	agent bool
	// toldAt is when the agent last told what pods use. Until it does again, what pods need is
	// not known.
	toldAt time.Time
}

// reading is whether the pool can be read.
type reading int

const (
	neverRead reading = iota
	isRead
	lost // for a lease: nothing that it said stands
)

// mostMemory is the part of a node's memory that a pod may have beyond what it is owed. The pool and
// the agent stay within it; whoever can write to Redis does not get past it.
const mostMemory = 4

// memoryOf is the least bytes of memory that a pod's limit is to be by the pool, of one that is
// owed so many, on a node that has so many; 0 is not known.
func (l *loans) memoryOf(pod string, owed, node int64) int64 {
	least := max(owed+l.pods[pod].Borrowed.MemoryBytes, l.needs[pod])
	if node > 0 {
		least = min(least, owed+node/mostMemory)
	}
	return least
}

// blind says that it is not known what pods use of their memory, and has not been for too short
// a time to take their limits back all the same.
func (l *loans) blind(now time.Time) bool { return !l.agent && now.Sub(l.toldAt) < memoryBlind }

// read takes in what the pool says of the node. When it cannot be read, what was read last
// stands for one lease: for so long Redis keeps it, too. It is false while nothing is known.
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
	if l.state != lost && now.Sub(l.readAt) >= pool.LeaseTTL {
		*l = loans{state: lost, readAt: l.readAt, toldAt: l.toldAt}
		log.Error(err, "the pool could not be read for a lease: nothing more is lent, and memory limits go back when that has lasted", "after", memoryBlind)
	} else {
		log.V(1).Info("reading the pool failed", "error", err.Error())
	}
	return l.state != neverRead
}
