package placement

import (
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
	q.coverages = q.coverages[:0]
	most := -1.0
	// Of those that cover all of it the first one will do, since none covers more: they are looked at
	// from a place of chance on.
	start := q.below(len(candidates))
	for i, left := start, len(candidates); left > 0; left-- {
		c := &candidates[i]
		covered, known := c.View.CoverageFrom(most-closeEnough, c.Source, q.Demand, q.Now)
		if known && covered >= 1-closeEnough {
			c.debit(q)
			return emptiest(candidates, i)
		}
		if !known {
			covered = -1
		}
		q.coverages = append(q.coverages, covered)
		most = max(most, covered)
		if i++; i == len(candidates) {
			i = 0
		}
	}
	if most < 0 {
		return Hash(q, candidates)
	}
	// coverages begin with that of start.
	at := q.anyFrom(max(0, most-closeEnough))
	i := (start + at) % len(candidates)
	candidates[i].debit(q)
	return emptiest(candidates, i)
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
