package placement

import (
	"math"
	"sync/atomic"
)

// Activators with the same picture all see the same nodes as the best, and until the next refresh none knows
// what the others have chosen. So each prefers nodes of its own, and discounts those of others, the more so the
// more often others choose. It presumes that they choose as often as it does itself: it asks nobody.
const (
	// leastTrust is the least that another activator's node counts. Below it, more is lost on nodes that nobody
	// chooses than is won; loadtest/bench/pool shows how much is granted of what was promised.
	leastTrust = 0.35
	// halfTrusted is how many choices of others between two refreshes halve what their nodes count: about as many
	// as there are nodes that are nearly as good as the best.
	halfTrusted = 8
)

// choosing counts how often this activator places by what nodes lend.
type choosing struct {
	now     atomic.Int64  // since the last refresh
	usually atomic.Uint64 // between two refreshes, as the bits of a float64
}

// refreshed adds the count since the last refresh to what is usual. It must not be called concurrently.
func (c *choosing) refreshed() {
	usually := math.Float64frombits(c.usually.Load())
	c.usually.Store(math.Float64bits(usually + (float64(c.now.Swap(0))-usually)/8))
}

// trust returns what the nodes of the others count when there are that many activators.
func (c *choosing) trust(activators int) float64 {
	if activators <= 1 {
		return 1
	}
	others := float64(activators-1) * math.Float64frombits(c.usually.Load())
	return max(leastTrust, halfTrusted/(halfTrusted+others))
}

// owns says whether a node is this activator's. It is the same for all revisions that have the same activators.
func (a activators) owns(nodeHash uint64) bool {
	return a.count <= 1 || nodeHash%uint64(a.count) == uint64(a.index)
}

// part is a part of the candidates, by whose their nodes are.
type part int

const (
	ofAll part = iota
	ofOwn
	ofOthers
)

func (p part) has(c *Candidate) bool { return p == ofAll || c.own == (p == ofOwn) }
