// Package tapp says where requests to functions go, as an operator wrote it in a PlacementPolicy. The language is tAPP
// (De Palma et al., "An OpenWhisk Extension for Topology-Aware Allocation Priority Policies", COORDINATION 2024). A
// worker of the paper is a node here, and it is valid for a function only if it has a pod of the function with a free
// slot.
package tapp

import (
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// None is the block of a request that none of the policy's blocks has placed.
const None = -1

// Program is a policy that has been compiled for the nodes that there are, and for an activator in one zone. It is safe
// for concurrent use.
type Program struct {
	name     string
	blocks   []block
	order    v1alpha1.Strategy // of the blocks
	workers  []worker          // of all blocks, by their bits
	followup v1alpha1.Followup

	// memberships are the workers that a node is among, as bits: first for each node that there is, then for each that is
	// named but not there, and last for any other.
	memberships []uint64
	nodes       *Nodes
	absent      map[string]int32
	// byID are the same by placement.NodeID, and atID is where in memberships each is.
	byID []uint64
	atID []int32
	// checked are the workers whose invalidate depends on more than the node's conditions.
	checked uint64
	load    func(q *placement.Query, c *placement.Candidate) (cpu float64, inFlight int)
	// unmatched are the numbers of the blocks that match no node.
	unmatched []int32
	zoning
}

type block struct {
	number  int
	workers uint64
	chooser
}

// worker is a node, or a set of nodes.
type worker struct {
	set bool
	chooser
	// inherits says that a set has no strategy of its own.
	inherits bool
	// A node is invalid from these values on.
	capacity   float64 // of its CPU, 0 to 1
	concurrent int
}

// chooser is a strategy. compare is nil for strategies that look at nodes alone.
type chooser struct {
	strategy v1alpha1.Strategy
	compare  placement.Policy
}

// noBound is for a worker that stays valid with any number of invocations.
const noBound = math.MaxInt

// Place implements placement.Program. The index is -1 if the followup is to decide.
func (p *Program) Place(q *placement.Query, candidates []placement.Candidate) (index, block int) {
	c := choices.Get().(*choice)
	defer c.end()
	c.begin(p, q, candidates)
	for left := p.eligible(c); left != 0; {
		b := &p.blocks[p.next(q, p.preferred(q, left))]
		if i := c.inBlock(b); i >= 0 {
			return i, b.number
		}
		left &^= 1 << b.number
	}
	return -1, None
}

// RefusedBy implements placement.Program.
func (p *Program) RefusedBy(string) string { return "the placement policy " + p.name }

// Unmatched returns the numbers of the blocks that match no node. The first block is 0.
func (p *Program) Unmatched() []int32 { return p.unmatched }

// eligible returns the blocks that candidates' nodes are in, as bits.
func (p *Program) eligible(c *choice) (eligible uint64) {
	for i := range p.blocks {
		if c.any&p.blocks[i].workers != 0 {
			eligible |= 1 << i
		}
	}
	return eligible
}

// next returns which of the blocks that are left to try.
func (p *Program) next(q *placement.Query, left uint64) int {
	switch p.order {
	case v1alpha1.Random:
		if q.Order != 0 {
			return heaviest(left, q.Order)
		}
		return nth(left, q.Below(bits.OnesCount64(left)))
	case v1alpha1.Platform:
		return heaviest(left, hashOf(q))
	default:
		return bits.TrailingZeros64(left)
	}
}

// indexOf returns where a node's memberships are.
func (p *Program) indexOf(node string) int32 {
	if i, ok := p.nodes.index[node]; ok {
		return i
	}
	if i, ok := p.absent[node]; ok {
		return i
	}
	return int32(len(p.memberships) - 1)
}

// WorkersOf implements placement.Sorter.
func (p *Program) WorkersOf(c *placement.Candidate) uint64 { return p.membershipsOf(c) }

// membershipsOf returns the workers that a candidate's node is among. It is called for every candidate.
func (p *Program) membershipsOf(c *placement.Candidate) uint64 {
	if c.NodeID != 0 && int(c.NodeID) < len(p.byID) {
		return p.byID[c.NodeID]
	}
	return p.memberships[p.indexOf(c.Node)]
}

// orderOf returns where a candidate's node is among all by name. Nodes that are named but not there come after them,
// and then all others.
func (p *Program) orderOf(c *placement.Candidate) int32 {
	if c.NodeID != 0 && int(c.NodeID) < len(p.atID) {
		return p.atID[c.NodeID]
	}
	return p.indexOf(c.Node)
}

// identity returns the same number for candidates on one node.
func identity(c *placement.Candidate) uint64 {
	if c.NodeID != 0 {
		return uint64(c.NodeID)
	}
	return xxhash.Sum64String(c.Node)
}

// choice is what is known while one request is placed.
type choice struct {
	program    *Program
	query      *placement.Query
	candidates []placement.Candidate
	sorted     *placement.Sorted // or nil, and then:
	any, all   uint64            // the workers of any candidate, and those of all
	// valid are the workers that each candidate belongs to, without those found to be invalid.
	valid []uint64

	some  []placement.Candidate // the candidates that a strategy compares
	which []int32               // their indexes in candidates
}

// choices are pooled, so that no request allocates one.
var choices = sync.Pool{New: func() any { return &choice{} }}

func (c *choice) begin(p *Program, q *placement.Query, candidates []placement.Candidate) {
	c.program, c.query, c.candidates = p, q, candidates
	// If loads are checked, the valid nodes differ from one request to the next.
	if p.checked == 0 {
		if c.sorted = q.Sorted(p); c.sorted != nil {
			c.any = c.sorted.Any()
			return
		}
	}
	c.look()
}

// look looks at all candidates.
func (c *choice) look() {
	p, candidates := c.program, c.candidates
	c.sorted = nil
	c.valid = slices.Grow(c.valid[:0], len(candidates))[:len(candidates)]
	some, all := uint64(0), ^uint64(0)
	for i := range candidates {
		of := p.membershipsOf(&candidates[i])
		c.valid[i] = of
		some |= of
		all &= of
	}
	c.any, c.all = some, all
}

// end drops what is the caller's, except what copies of candidates refer to: the next request overwrites those, or they
// are collected with the choice.
func (c *choice) end() {
	c.program, c.query, c.candidates, c.sorted = nil, nil, nil, nil
	choices.Put(c)
}

// inBlock returns the candidate that a block chooses, or -1.
func (c *choice) inBlock(b *block) int {
	valid := c.check(b.workers)
	if valid == 0 {
		return -1
	}
	switch b.strategy {
	case v1alpha1.BestFirst:
		return c.inWorker(bits.TrailingZeros64(valid))
	case v1alpha1.Random:
		return c.inWorker(nth(valid, c.query.Below(bits.OnesCount64(valid))))
	}
	i := c.compare(b.compare, b.workers)
	of := bits.TrailingZeros64(c.workersOf(i) & b.workers)
	if w := &c.program.workers[of]; w.set && !w.inherits {
		return c.inWorker(of)
	}
	return i
}

// workersOf returns the workers that a candidate is valid for.
func (c *choice) workersOf(i int) uint64 {
	if c.sorted != nil {
		return c.program.membershipsOf(&c.candidates[i])
	}
	return c.valid[i]
}

// check returns those of the workers that have a candidate on a valid node, and removes the others from the candidates.
func (c *choice) check(workers uint64) (valid uint64) {
	checked := workers & c.program.checked
	if checked&c.any == 0 {
		return workers & c.any
	}
	for i := range c.valid {
		if ask := c.valid[i] & checked; ask != 0 {
			invalid := c.program.invalid(c.query, &c.candidates[i], ask)
			c.valid[i] &^= invalid
			c.all &^= invalid
		}
		valid |= c.valid[i]
	}
	return valid & workers
}

// invalid returns those of the workers for which a candidate's node is not valid now.
func (p *Program) invalid(q *placement.Query, of *placement.Candidate, workers uint64) (invalid uint64) {
	used, inFlight := p.load(q, of)
	for ; workers != 0; workers &= workers - 1 {
		i := bits.TrailingZeros64(workers)
		if w := &p.workers[i]; used >= w.capacity || inFlight >= w.concurrent {
			invalid |= 1 << i
		}
	}
	return invalid
}

// inWorker returns the candidate that is chosen within a worker, which has at least one.
func (c *choice) inWorker(number int) int {
	w := &c.program.workers[number]
	if w.compare != nil {
		return c.compare(w.compare, 1<<number)
	}
	seed := uint64(0)
	if w.strategy == v1alpha1.Random {
		seed = c.query.Uint64()
	}
	if c.sorted != nil {
		if some, kept := c.sorted.Of(1 << number); kept {
			return c.sorted.Index(1<<number, c.lowest(w.strategy, seed, some, nil, 0))
		}
		c.look()
	}
	return c.lowest(w.strategy, seed, c.candidates, c.valid, 1<<number)
}

// lowest returns the candidate on the node of the lowest rank, by name or by chance. It ranks nodes, not pods, so that
// a node with many pods has no better chance than another. On that node, it takes the pod with the fewest requests.
// valid says which candidates belong to the worker; nil means that all do.
func (c *choice) lowest(s v1alpha1.Strategy, seed uint64, candidates []placement.Candidate, valid []uint64, worker uint64) int {
	best, rank := -1, uint64(0)
	for i := range candidates {
		if valid != nil && valid[i]&worker == 0 {
			continue
		}
		of := uint64(0)
		if s == v1alpha1.Random {
			of = mix(seed, identity(&candidates[i]))
		} else {
			of = uint64(c.program.orderOf(&candidates[i]))
		}
		if best < 0 || of < rank || of == rank && candidates[i].InFlight < candidates[best].InFlight {
			best, rank = i, of
		}
	}
	return best
}

// compare returns the candidate of the workers that a policy chooses. There is at least one.
func (c *choice) compare(policy placement.Policy, workers uint64) int {
	if c.sorted != nil {
		if some, kept := c.sorted.Of(workers); kept {
			i := 0
			if len(some) > 1 {
				i = policy(c.query, some)
			}
			return c.sorted.Index(workers, i)
		}
		c.look()
	}
	if c.all&workers != 0 {
		return policy(c.query, c.candidates)
	}
	c.some, c.which = slices.Grow(c.some[:0], len(c.valid)), slices.Grow(c.which[:0], len(c.valid))
	for i := range c.valid {
		if c.valid[i]&workers != 0 {
			c.some, c.which = append(c.some, c.candidates[i]), append(c.which, int32(i))
		}
	}
	if len(c.which) == 1 {
		return int(c.which[0])
	}
	return int(c.which[policy(c.query, c.some)])
}

// nth returns the number of the n-th bit that is set, counting from 0.
func nth(bitsSet uint64, n int) int {
	for ; n > 0; n-- {
		bitsSet &= bitsSet - 1
	}
	return bits.TrailingZeros64(bitsSet)
}

// heaviest returns which of the bits that are set weighs the most, by a hash of its number and the seed.
func heaviest(bitsSet, seed uint64) int {
	best, weight := -1, uint64(0)
	for ; bitsSet != 0; bitsSet &= bitsSet - 1 {
		i := bits.TrailingZeros64(bitsSet)
		if w := mix(seed, uint64(i)); best < 0 || w > weight {
			best, weight = i, w
		}
	}
	return best
}

// hashOf is the same for all requests to a revision, and on all activators.
func hashOf(q *placement.Query) uint64 {
	return mix(xxhash.Sum64String(q.Revision.Namespace), xxhash.Sum64String(q.Revision.Name))
}

// mix returns a hash of two numbers (the finalizer of SplitMix64).
func mix(a, b uint64) uint64 {
	x := a + (b+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
