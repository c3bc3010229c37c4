package placement

import (
	"math"
	"time"

	"libra.dev/libra/pkg/api"
)

// closeEnough is the difference of coverage below which candidates are as good as each other. Those
// who have the same picture would all send to the same node otherwise.
const closeEnough = 0.02

// Coverage takes a candidate whose node covers the most of the demand (LIBRA, section 6.3), and has the demand taken
// off what the node can lend that the request goes to. (The code that its authors published takes the least covered
// one first.) Where several do, it takes two by chance, and of these the one whose node has fewer requests: what a
// node lends on paper is a limit, and the more run there, the longer each waits for the CPU itself. Where nothing is
// known of any node it is Hash.
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

// found is a candidate, or at is less than 0 where nothing is known of any.
type found struct {
	at int
	of part
	// covered is what its node covers, and enough what one that is as good covers at least.
	covered, enough float64
}

// mostCovered is one whose node covers no less than closeEnough below the most. What the nodes of others cover
// counts for less where they may have been chosen meanwhile.
func (q *Query) mostCovered(candidates []Candidate, b *bounding) found {
	if b.trust >= 1 {
		return q.search(candidates, b, ofAll)
	}
	own := q.search(candidates, b, ofOwn)
	// What is not wanted is covered everywhere.
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

// search is one of a part of the candidates whose node covers no less than closeEnough below the most of them. It
// looks no closer at those whose bounds say that they do not.
func (q *Query) search(candidates []Candidate, b *bounding, of part) found {
	first := q.below(len(candidates))
	best, highest, covered := q.best(candidates, b, of, first)
	if best < 0 || covered > 0 {
		return found{at: best, of: of, covered: covered, enough: highest - closeEnough}
	}
	return q.nearMost(candidates, b, of, first, best, highest)
}

// asGood is the next candidate on another node than one that was found which is as good; less than 0 if there is
// none among so many that may be.
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

// closeLooks is how many that may cover all are looked at closely before it is known which may cover the most.
const closeLooks = 8

// best is the first that is seen to cover all but closeEnough, and what it covers. Without one it is one that may
// cover the most, and highest is no less than what any covers. It is less than 0 where nothing is known of any.
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

// nearMost is one that covers no less than closeEnough below the most, where best is one that may cover the most, and
// none covers more than highest.
func (q *Query) nearMost(candidates []Candidate, b *bounding, of part, first, best int, highest float64) found {
	most := q.cover(&candidates[best])
	at, covered := -1, most
	// The first that is near the most is as good as others that are; then only what covers more is of interest.
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
		at, covered = best, most // others have it meanwhile
	}
	if covered >= highest-closeEnough {
		most = highest // there may be one among those that were not looked at
	}
	return found{at: at, of: of, covered: covered, enough: max(0, most-closeEnough)}
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
	falling, rising split
	// hasBounds says whether those of idle CPU hold.
	hasBounds bool
	// trust is of what the nodes of others are seen to cover how much is likely to be there still.
	trust float64
}

// bound presumes that all candidates are of one picture and domain.
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
		most := float64(of.cpu.bounds[0][at].Load())
		level = int32(math.Ceil(left(float64(level), most, float64(beside))))
	}
	return level
}

// atMost is no less than what is covered where there is so much CPU.
func (b *bounding) atMost(level int32) (covered float64) {
	if want := b.demand.Want.CPUMilli; want > 0 {
		return 1 - cpuWeight + cpuWeight*min(float64(level)/float64(want), 1)
	}
	return 1
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
