package placement

import (
	"math"
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
// any. It looks no closer at those whose bounds say that they do not.
func (q *Query) mostCovered(candidates []Candidate) int {
	b := q.bound(candidates)
	best, highest := b.best(candidates)
	if best < 0 {
		return -1
	}
	best, enough := q.enough(candidates, &b, best, highest)
	if enough < 0 {
		return -1
	}
	least := b.least(enough)
	for i, left := q.below(len(candidates)), len(candidates); left > 0; left-- {
		c := &candidates[i]
		if b.roughly(c) >= least && b.closely(c) >= enough && q.cover(c) >= enough {
			return i
		}
		if i++; i == len(candidates) {
			i = 0
		}
	}
	return best
}

// enough is closeEnough below the most that is covered, and who covers that much. It is less than 0 where nothing is
// known of any.
func (q *Query) enough(candidates []Candidate, b *bounding, best int, highest float64) (at int, enough float64) {
	most := q.cover(&candidates[best])
	least := b.least(most)
	for i := range candidates {
		// None covers more than highest.
		if most >= highest-closeEnough {
			return best, max(0, highest-closeEnough)
		}
		c := &candidates[i]
		if i == best || b.roughly(c) < least || b.closely(c) <= most {
			continue
		}
		if covered := q.cover(c); covered > most {
			best, most, least = i, covered, b.least(covered)
		}
	}
	if most < 0 {
		return best, most
	}
	return best, max(0, most-closeEnough)
}

// cover is what a candidate's node covers, or less than 0 where that is not known.
func (q *Query) cover(c *Candidate) float64 {
	covered, known := c.View.Coverage(c.Source, q.Demand, q.Now)
	if !known {
		return -1
	}
	return covered
}

// bounding compares a demand with bounds.
type bounding struct {
	demand          Demand
	lent, idle      []*chunk
	falling, rising between
	// hasBounds says whether those of idle CPU hold.
	hasBounds bool
}

// bound presumes that all candidates are of one picture and domain.
func (q *Query) bound(candidates []Candidate) (b bounding) {
	b.demand, b.falling, b.rising = q.Demand, ofFalling(q.Demand.Duration), ofRising(q.Demand.Duration)
	for i := range candidates {
		if v := candidates[i].View; v != nil {
			if !v.board.compared.Load() {
				v.board.compared.Store(true)
			}
			b.lent, b.idle, b.hasBounds = *v.board.chunks.Load(), *v.picture.idle.chunks.Load(), v.picture.hasBounds(q.Now)
			break
		}
	}
	return b
}

// roughly is no less than how much CPU there is, and less than 0 where nothing is known, in one look.
func (b *bounding) roughly(c *Candidate) int32 {
	slots := c.slots
	if slots.lent == 0 {
		slots = c.View.slotsOf(c.Source)
	}
	var of *chunk
	var at int32
	bound, beside := b.falling.rough, int64(0)
	switch {
	case slots.idle != 0:
		of, at = columns(b.idle, slots.idle)
		if bound, beside = b.rising.rough, b.demand.OwnCPUMilli; !b.hasBounds {
			bound = 0
		}
	case slots.lent != 0:
		of, at = columns(b.lent, slots.lent)
	default:
		return -1
	}
	level := of.cpu.bounds[bound][at].Load()
	if beside += of.cpu.debited[at].Load(); beside > 0 && level > 0 {
		level = int32(min(int64(level), max(0, int64(of.cpu.bounds[0][at].Load())-beside)))
	}
	return level
}

// best is one that may cover the most, and no less than what any covers. It is less than 0 where nothing is known
// of any.
func (b *bounding) best(candidates []Candidate) (best int, highest float64) {
	best, most := -1, int32(-1)
	for i := range candidates {
		if level := b.roughly(&candidates[i]); level > most {
			best, most = i, level
		}
	}
	highest = 1
	if want := b.demand.Want.CPUMilli; want > 0 {
		highest = 1 - cpuWeight + cpuWeight*min(float64(most)/float64(want), 1)
	}
	return best, highest
}

// least is how much CPU there must be for as much as this to be covered.
func (b *bounding) least(covered float64) int32 {
	least := (covered - (1 - cpuWeight)) / cpuWeight * float64(b.demand.Want.CPUMilli)
	return int32(max(0, min(least, math.MaxInt32)))
}

// closely is no less than what the node of a candidate covers of which something is known.
func (b *bounding) closely(c *Candidate) (covered float64) {
	slots, want := c.slots, b.demand.Want
	if slots.lent == 0 {
		slots = c.View.slotsOf(c.Source)
	}
	of, at := columns(b.lent, slots.lent)
	switch {
	case slots.idle == 0:
		covered = of.cpu.most(at, &b.falling, want.CPUMilli, 0)
	case b.hasBounds:
		of, at := columns(b.idle, slots.idle)
		covered = of.cpu.most(at, &b.rising, want.CPUMilli, b.demand.OwnCPUMilli)
	default:
		covered = 1
	}
	return cpuWeight*covered + (1-cpuWeight)*of.memory.most(at, &b.falling, want.MemoryBytes, 0)
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
