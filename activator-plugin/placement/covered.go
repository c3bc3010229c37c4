package placement

import (
	"math"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
)

// closeEnough is the difference of coverage below which candidates are as good as each other. Those
// who have the same picture would all send to the same node otherwise.
const closeEnough = 0.02

// Coverage takes a candidate whose node covers the most of the demand (LIBRA, section 6.3), by
// chance where several do, and takes the demand off what its node can lend. (The code that its
// authors published takes the least covered one first.) Where nothing is known of any node it is Hash.
func Coverage(q *Query, candidates []Candidate) int {
	i := q.mostCovered(candidates)
	if i < 0 {
		return Hash(q, candidates)
	}
	candidates[i].debit(q)
	return emptiest(candidates, i)
}

// mostCovered is one whose node covers no less than closeEnough below the most; -1 where nothing is known of
// any. Only those are looked at whose bounds say that they may.
func (q *Query) mostCovered(candidates []Candidate) int {
	best := q.bound(candidates)
	highest := q.coverages[best]
	// Then it is soon known which of the others need not be looked at.
	most := q.cover(candidates, best)
	// None covers more than highest: the first that comes near that will do. They are looked at from a place of
	// chance on.
	for i, left := q.below(len(candidates)), len(candidates); left > 0; left-- {
		if q.coverages[i] >= max(0, most-closeEnough) {
			covered := q.coverages[i]
			if i != best {
				covered = q.cover(candidates, i)
			}
			if covered >= highest-closeEnough {
				return i
			}
			most = max(most, covered)
		}
		if i++; i == len(candidates) {
			i = 0
		}
	}
	if most < 0 {
		return -1
	}
	return q.anyFrom(max(0, most-closeEnough))
}

// bound sets the coverages to no less than they are, and to less than 0 where nothing is known. It returns
// where the highest is.
func (q *Query) bound(candidates []Candidate) (best int) {
	q.coverages = slices.Grow(q.coverages[:0], len(candidates))[:len(candidates)]
	falling, rising := ofFalling(q.Demand.Duration), ofRising(q.Demand.Duration)
	highest := math.Inf(-1)
	for i := range candidates {
		covered := -1.0
		switch c := &candidates[i]; {
		case c.View == nil:
		case c.Source == api.SourceNode:
			if covered = c.View.node.idle.cpu.most(&rising, q.Demand.Want.CPUMilli, q.Demand.OwnCPUMilli); covered >= 0 && !c.View.picture.hasBounds(q.Now) {
				covered = 1
			}
		default:
			covered = c.View.lent.cpu.most(&falling, q.Demand.Want.CPUMilli, 0)
		}
		if covered >= 0 {
			covered *= cpuWeight
			if want := q.Demand.Want.MemoryBytes; want > 0 {
				covered += (1 - cpuWeight) * candidates[i].View.lent.memory.most(&falling, want, 0)
			} else {
				covered += 1 - cpuWeight
			}
		}
		q.coverages[i] = covered
		if covered > highest {
			best, highest = i, covered
		}
	}
	return best
}

// cover sets a coverage to what it is, or less than 0 where that is not known.
func (q *Query) cover(candidates []Candidate, i int) float64 {
	c := &candidates[i]
	covered, known := c.View.Coverage(c.Source, q.Demand, q.Now)
	if !known {
		covered = -1
	}
	q.coverages[i] = covered
	return covered
}

// emptiest is where the pod is that has the fewest requests, of those on the node of a candidate: what
// a node can lend it can lend to any of them.
func emptiest(candidates []Candidate, on int) int {
	best := on
	for i := range candidates {
		c := &candidates[i]
		if c.View == candidates[on].View && c.InFlight < candidates[best].InFlight {
			best = i
		}
	}
	return best
}

// anyFrom is where one of the coverages is that is not less than the least, of which there is one.
func (q *Query) anyFrom(least float64) int {
	near := 0
	for _, covered := range q.coverages {
		if covered >= least {
			near++
		}
	}
	which := q.below(near)
	for i, covered := range q.coverages {
		if covered < least {
			continue
		}
		if which == 0 {
			return i
		}
		which--
	}
	return 0
}

// debit takes the demand off what its node can lend.
func (c *Candidate) debit(q *Query) {
	if q.Demand.Accelerable() {
		q.debited, q.promised = true, promiseOf(c.View, c.Source, q.Demand, q.Now)
		c.View.Debit(c.Source, q.Demand, q.Now)
	}
}

// promise is what a place is chosen for.
type promise struct {
	known    bool
	coverage float64
	cpuMilli int64 // on average
}

func promiseOf(v *View, source api.Source, d Demand, now time.Time) (p promise) {
	if p.coverage, p.known = v.Coverage(source, d, now); !p.known || d.Want.CPUMilli <= 0 {
		return p
	}
	// Memory that is not wanted is all covered.
	d.Want.MemoryBytes = 0
	ofCPU, _ := v.Coverage(source, d, now)
	p.cpuMilli = int64(max(0, ofCPU-(1-cpuWeight)) / cpuWeight * float64(d.Want.CPUMilli))
	return p
}
