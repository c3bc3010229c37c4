package tapp

import (
	"math/bits"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// Order is the order in which nodes should get the pods of a function, so that its requests go where a policy wants
// them first. It is immutable.
type Order struct {
	// Policy is the policy's name, with its namespace if it has one.
	Policy string
	// Ranks is the number of ranks, which count from 0. The last rank is for nodes that neither the policy nor the default
	// that follows it names.
	Ranks int

	fails           bool // no request ever goes to nodes of the last rank
	first, followed ranked
}

// ranked is a program with the rank of each of its blocks.
type ranked struct {
	*Program
	ranks [maxBlocks]int
}

// OrderOf returns the order of the policy for a revision with a tag, or nil if no policy applies.
func (p *Policies) OrderOf(revision types.NamespacedName, tag string) *Order {
	f := p.force.Load()
	if f == nil {
		return nil
	}
	e := f.of(revision.Namespace, tag)
	if e == nil {
		return nil
	}
	var followed *Program
	if d := f.named(revision.Namespace, v1alpha1.DefaultName); d != nil {
		followed = d.Program
	}
	return NewOrder(e.key.String(), revision, e.Program, followed)
}

// NewOrder returns the order that a policy gives nodes for a revision. byDefault follows the policy unless its followup
// is fail; nil is the platform's choice.
func NewOrder(policy string, revision types.NamespacedName, p, byDefault *Program) *Order {
	o := &Order{Policy: policy, fails: p.followup == v1alpha1.FollowupFail}
	o.first = o.rank(p, revision)
	if byDefault != nil && !o.fails {
		o.fails = byDefault.followup == v1alpha1.FollowupFail
		o.followed = o.rank(byDefault, revision)
	}
	o.Ranks++
	return o
}

// rank gives each block of a program a rank, beginning with the first that is free.
func (o *Order) rank(p *Program, revision types.NamespacedName) ranked {
	r := ranked{Program: p}
	q := &placement.Query{Revision: revision}
	for left := uint64(1)<<len(p.blocks) - 1; left != 0; {
		next := bits.TrailingZeros64(left)
		if p.order != v1alpha1.Random {
			next = p.next(q, left)
		}
		r.ranks[next] = o.Ranks
		left &^= 1 << next
		// Blocks that chance orders share one rank.
		if p.order != v1alpha1.Random || left == 0 {
			o.Ranks++
		}
	}
	return r
}

// Refuses says whether there may be nodes to which no request ever goes.
func (o *Order) Refuses() bool { return o.fails }

// Rank returns the rank of a node. goes is false if no request ever goes there.
func (o *Order) Rank(node string) (rank int, goes bool) {
	if rank = o.first.of(node); rank != None {
		return rank, true
	}
	if o.followed.Program != nil {
		if rank = o.followed.of(node); rank != None {
			return rank, true
		}
	}
	return o.Ranks - 1, !o.fails
}

// of returns the rank of the first block that names a node, whatever its state, or None.
func (r *ranked) of(node string) int {
	named, best := r.memberships[r.indexOf(node)], None
	for i := range r.blocks {
		if named&r.blocks[i].workers != 0 && (best == None || r.ranks[i] < best) {
			best = r.ranks[i]
		}
	}
	return best
}
