package placement

import (
	"math"
	"time"

	"libra.dev/libra/pkg/api"
)

// closeEnough is the difference in coverage, as a share of what nodes can differ in, below which candidates count as
// equal. Otherwise all activators with the same picture would send to the same node.
const closeEnough = 0.02

const (
	// mostLooks bounds how many nodes one search works out the coverage of. The bounds leave fewer than that, unless
	// nearly all that is lent has been given away.
	mostLooks = 32
	// mostDraws bounds how many nodes are drawn to find two that are as good as the best.
	mostDraws = 8
)

// Coverage takes a candidate whose node covers the most of the demand (LIBRA, section 6.3), and debits the demand
// from that node. (The code that the paper's authors published takes the least covered one first.) When several nodes
// do, it draws two of them, and takes the one with fewer requests: what a node lends on paper is a limit, and the
// more requests run there, the longer each waits for the CPU itself. When nothing is known about any node, it is
// as Default for other requests.
func Coverage(q *Query, candidates []Candidate) int {
	b := q.bound(candidates)
	most := q.mostCovered(candidates, &b)
	if most.at < 0 {
		return homeUnlessFuller(q, candidates)
	}
	q.debited = true
	return emptiest(candidates, q.draw(candidates, most))
}

// found is the outcome of a search.
type found struct {
	at int // negative if nothing is known about any candidate
	// covered is what its node covers, and enough is the least that another node must cover to count as equal.
	covered, enough float64
	among           []prospect
}

// anyway returns the coverage that every node has: what is not wanted counts as covered.
func (d Demand) anyway() (coverage float64) {
	if d.Want.CPUMilli <= 0 {
		coverage += cpuWeight
	}
	if d.Want.MemoryBytes <= 0 {
		coverage += 1 - cpuWeight
	}
	return coverage
}

// mostCovered returns a candidate whose node is within closeEnough of the most covered. It discounts what the nodes
// of other activators cover, because those may have chosen them since the last refresh.
func (q *Query) mostCovered(candidates []Candidate, b *bounding) found {
	q.prospects = q.prospects[:0]
	if b.trust >= 1 {
		return q.search(candidates, b, ofAll)
	}
	own := q.search(candidates, b, ofOwn)
	anyway := q.Demand.anyway()
	if own.covered-anyway >= b.trust*(1-anyway) {
		return own
	}
	if other := q.search(candidates, b, ofOthers); own.at < 0 || b.trust*(other.covered-anyway) > own.covered-anyway {
		return other
	}
	return own
}

// search returns a candidate of one part whose node is within closeEnough of the most covered in that part, or the
// most covered of mostLooks. It looks at the nodes in the order of what they may cover at most.
func (q *Query) search(candidates []Candidate, b *bounding, of part) found {
	f := found{at: -1, covered: -1, among: q.prospectsOf(candidates, b, of)}
	near := closeEnough * (1 - q.Demand.anyway())
	for left, looks := f.among, mostLooks; len(left) > 0 && looks > 0; {
		top := &left[0]
		if f.covered >= top.covers-near {
			f.enough = top.covers // one that was not looked at may cover that much
			break
		}
		c := &candidates[top.at]
		if top.known == rough {
			top.covers, top.known = min(top.covers, b.closely(c)), closer
			sink(left, 0)
			continue
		}
		// Nothing may be known by now: the bounds stay while nothing is heard.
		if top.covers, top.known = q.cover(c), exact; top.covers >= 0 {
			looks--
		}
		if top.covers > f.covered {
			f.at, f.covered = int(top.at), top.covers
		}
		last := len(left) - 1
		left[0], left[last] = left[last], left[0]
		left = left[:last]
		sink(left, 0)
	}
	f.enough = max(0, max(f.enough, f.covered)-near)
	return f
}

// draw returns a candidate as good as the one found. It draws two, and takes the one on the node with fewer requests.
func (q *Query) draw(candidates []Candidate, most found) int {
	good := most.among[:0]
	for i, p := range most.among {
		if p.covers >= most.enough {
			most.among[i], most.among[len(good)] = most.among[len(good)], p
			good = most.among[:len(good)+1]
		}
	}
	drawn := -1
	for draws := mostDraws; len(good) > 0 && draws > 0; draws-- {
		i, last := q.Below(len(good)), len(good)-1
		p := good[i]
		good[i], good = good[last], good[:last]
		if p.known != exact {
			p.covers = q.cover(&candidates[p.at])
		}
		switch {
		case p.covers < most.enough:
		case drawn < 0:
			drawn = int(p.at)
		default:
			return q.emptier(candidates, drawn, int(p.at))
		}
	}
	if drawn < 0 {
		return most.at
	}
	return q.emptier(candidates, drawn, most.at)
}

func (q *Query) emptier(candidates []Candidate, i, j int) int {
	if q.OnNode(&candidates[j]) < q.OnNode(&candidates[i]) {
		return j
	}
	return i
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
	if want := b.demand.Want.CPUMilli; int64(level) < want {
		return 1 - cpuWeight + cpuWeight*float64(level)/float64(want)
	}
	return 1
}

// closely returns an upper bound on what a candidate's node covers. Something must be known about the node.
func (b *bounding) closely(c *Candidate) (covered float64) {
	slots, want := c.slots, b.demand.Want
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
