package placement

import (
	"math"
	"time"

	"libra.dev/libra/pkg/api"
)

// closeEnough is the difference in coverage below which candidates count as equal. Otherwise all activators with the
// same picture would send to the same node.
const closeEnough = 0.02

// Coverage takes a candidate whose node covers the most of the demand (LIBRA, section 6.3), and debits the demand
// from that node. (The code that the paper's authors published takes the least covered one first.) When several nodes
// do, it draws two of them, and takes the one with fewer requests: what a node lends on paper is a limit, and the
// more requests run there, the longer each waits for the CPU itself. When nothing is known about any node, it is
// Hash.
func Coverage(q *Query, candidates []Candidate) int {
	b := q.bound(candidates)
	most := q.mostCovered(candidates, &b)
	if most.at < 0 {
		return Hash(q, candidates)
	}
	i := most.at
	if other := q.asGood(candidates, &b, most); other >= 0 && q.OnNode(&candidates[other]) < q.OnNode(&candidates[i]) {
		i = other
	}
	q.debited = true
	return emptiest(candidates, i)
}

// found is a candidate. at is negative if nothing is known about any.
type found struct {
	at int
	of part
	// covered is what its node covers, and enough is the least that another node must cover to count as equal.
	covered, enough float64
}

// mostCovered returns a candidate whose node is within closeEnough of the most covered. It discounts what the nodes
// of other activators cover, because those may have chosen them since the last refresh.
func (q *Query) mostCovered(candidates []Candidate, b *bounding) found {
	if b.trust >= 1 {
		return q.search(candidates, b, ofAll)
	}
	own := q.search(candidates, b, ofOwn)
	// Every node covers what is not wanted.
	anyway := 0.0
	if q.Demand.Want.CPUMilli <= 0 {
		anyway += cpuWeight
	}
	if q.Demand.Want.MemoryBytes <= 0 {
		anyway += 1 - cpuWeight
	}
	if own.covered-anyway >= b.trust*(1-anyway) {
		return own
	}
	if other := q.search(candidates, b, ofOthers); own.at < 0 || b.trust*(other.covered-anyway) > own.covered-anyway {
		return other
	}
	return own
}

// search returns a candidate of one part whose node is within closeEnough of the most covered in that part. It does
// not look closely at candidates whose bounds rule them out.
func (q *Query) search(candidates []Candidate, b *bounding, of part) found {
	first := q.below(len(candidates))
	best, highest, covered := q.best(candidates, b, of, first)
	if best < 0 || covered > 0 {
		return found{at: best, of: of, covered: covered, enough: highest - closeEnough}
	}
	return q.nearMost(candidates, b, of, first, best, highest)
}

// asGood returns the next candidate on another node that counts as equal to the one found. It is negative if there is
// none among the first closeLooks that may be.
func (q *Query) asGood(candidates []Candidate, b *bounding, as found) int {
	view, least := candidates[as.at].View, b.least(as.enough)
	for i, left, looks := as.at+1, len(candidates)-1, closeLooks; left > 0 && looks > 0; i, left = i+1, left-1 {
		if i == len(candidates) {
			i = 0
		}
		if c := &candidates[i]; c.View != view && as.of.has(c) && b.roughly(c) >= least {
			looks--
			if b.closely(c) >= as.enough && q.cover(c) >= as.enough {
				return i
			}
		}
	}
	return -1
}

// closeLooks is how many candidates that may cover all are looked at closely before settling for one that may cover
// the most.
const closeLooks = 8

// best returns the first candidate that is seen to cover all but closeEnough, and what it covers. If there is none,
// it returns one that may cover the most, and highest is an upper bound on what any covers. best is negative if
// nothing is known about any.
func (q *Query) best(candidates []Candidate, b *bounding, of part, first int) (best int, highest, covered float64) {
	const enough = 1 - closeEnough
	best, most, least, looks := -1, int32(-1), b.least(enough), closeLooks
	for i, left := first, len(candidates); left > 0; left-- {
		if c := &candidates[i]; of.has(c) {
			level := b.roughly(c)
			if level > most {
				best, most = i, level
			}
			if level >= least && looks > 0 {
				looks--
				if b.closely(c) >= enough {
					if covered := q.cover(c); covered >= enough {
						return i, 1, covered
					}
				}
			}
		}
		if i++; i == len(candidates) {
			i = 0
		}
	}
	return best, b.atMost(most), 0
}

// nearMost returns a candidate that is within closeEnough of the most covered. The candidate best may cover the most,
// and none covers more than highest.
func (q *Query) nearMost(candidates []Candidate, b *bounding, of part, first, best int, highest float64) found {
	most := q.cover(&candidates[best])
	at, covered := -1, most
	// The first that is near the most counts as equal to others that are. After it, only one that covers more matters.
	enough := max(0, most-closeEnough)
	least := b.least(enough)
	for i, left := first, len(candidates); left > 0 && (at < 0 || covered < highest-closeEnough); left-- {
		c := &candidates[i]
		if of.has(c) && b.roughly(c) >= least && b.closely(c) >= enough {
			if covers := q.cover(c); covers >= enough {
				if most = max(most, covers); at < 0 || covered < most-closeEnough {
					at, covered = i, covers
				}
				enough = most
				least = b.least(enough)
			}
		}
		if i++; i == len(candidates) {
			i = 0
		}
	}
	if at < 0 && most >= 0 {
		at, covered = best, most // requests have been placed there meanwhile
	}
	if covered >= highest-closeEnough {
		most = highest // one that was not looked at may cover that much
	}
	return found{at: at, of: of, covered: covered, enough: max(0, most-closeEnough)}
}

// cover returns what a candidate's node covers. It is negative if that is not known.
func (q *Query) cover(c *Candidate) float64 {
	covered, known := c.View.Coverage(c.Source, q.Demand, q.Now)
	if !known {
		return -1
	}
	return covered
}

// bounding compares a demand with the nodes' bounds.
type bounding struct {
	demand          Demand
	lent, idle      []*chunk
	falling, rising split
	// hasBounds says whether the bounds of idle CPU hold.
	hasBounds bool
	// trust is the share of what other activators' nodes are seen to cover that is likely to be there still.
	trust float64
}

// bound presumes that all candidates belong to one picture and one domain.
func (q *Query) bound(candidates []Candidate) (b bounding) {
	b.demand, b.falling, b.rising, b.trust = q.Demand, ofFalling(q.Demand.Duration), ofRising(q.Demand.Duration), 1
	for i := range candidates {
		if v := candidates[i].View; v != nil {
			if !v.board.compared.Load() {
				v.board.compared.Store(true)
			}
			b.lent, b.idle, b.hasBounds = *v.board.chunks.Load(), *v.picture.idle.chunks.Load(), v.picture.hasBounds(q.Now)
			b.trust = v.picture.choosing.trust(q.activators)
			break
		}
	}
	return b
}

// roughly returns, in one look, an upper bound on the CPU that there is. It is negative if nothing is known.
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
		most := float64(of.cpu.bounds[0][at].Load())
		level = int32(math.Ceil(left(float64(level), most, float64(beside))))
	}
	return level
}

// atMost returns an upper bound on what is covered with that much CPU.
func (b *bounding) atMost(level int32) (covered float64) {
	if want := b.demand.Want.CPUMilli; want > 0 {
		return 1 - cpuWeight + cpuWeight*min(float64(level)/float64(want), 1)
	}
	return 1
}

// least returns how much CPU there must be for that much to be covered.
func (b *bounding) least(covered float64) int32 {
	least := (covered - (1 - cpuWeight)) / cpuWeight * float64(b.demand.Want.CPUMilli)
	return int32(max(0, min(least, math.MaxInt32)))
}

// closely returns an upper bound on what a candidate's node covers. Something must be known about the node.
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

// emptiest returns the candidate with the fewest requests among those on the same node: what a node can lend it can
// lend to any of them.
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

// promise is what a request's node is expected to give it.
type promise struct {
	known    bool
	coverage float64
	cpuMilli int64 // on average
}

func promiseOf(v *View, source api.Source, d Demand, now time.Time) (p promise) {
	if p.coverage, p.known = v.Coverage(source, d, now); !p.known || d.Want.CPUMilli <= 0 {
		return p
	}
	// Memory that is not wanted counts as covered.
	d.Want.MemoryBytes = 0
	ofCPU, _ := v.Coverage(source, d, now)
	p.cpuMilli = int64(max(0, ofCPU-(1-cpuWeight)) / cpuWeight * float64(d.Want.CPUMilli))
	return p
}
