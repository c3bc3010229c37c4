package tapp

import (
	"math/bits"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// Order is the order in which nodes are to have pods of a function, for its requests to go where a policy wants
// them first. It does not change.
type Order struct {
	// Policy is its name, with the namespace if it has one.
	Policy string
	// Ranks is how many there are, of which the first is 0. The last is of nodes that neither the policy nor the default that
	// follows it names.
	Ranks int

	fails           bool // no request ever goes to those
	first, followed ranked
}

// ranked is a program with the rank of each of its blocks.
type ranked struct {
	*Program
	ranks [maxBlocks]int
}

// OrderOf is that of the policy for a function of a revision with a tag, or nil where nobody has said anything.
func (p *Policies) OrderOf(revision types.NamespacedName, tag string) *Order {
	f := p.force.Load()
	if f == nil {
		return nil
	}
	of, e := f.find(revision.Namespace, tag)
	if e == nil {
		return nil
	}
	var followed *Program
	if d := f.named(revision.Namespace, v1alpha1.DefaultName); d != nil {
		followed = d.Program
	}
	return NewOrder(of.String(), revision, e.Program, followed)
}

// NewOrder is that of a policy for a function of a revision. The default is what follows it unless it fails; nil is the
// platform's choice.
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

// rank gives each block of a program one rank after another, from the first that is free on.
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
		// None comes before another where chance decides.
		if p.order != v1alpha1.Random || left == 0 {
			o.Ranks++
		}
	}
	return r
}

// Refuses says whether there may be nodes to which no request ever goes.
func (o *Order) Refuses() bool { return o.fails }

// Rank is that of a node. It is false where no request ever goes.
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

// of is the rank of the first block that names a node, whatever its state, or None.
func (r *ranked) of(node string) int {
	named, best := r.memberships[r.indexOf(node)], None
	for i := range r.blocks {
		if named&r.blocks[i].workers != 0 && (best == None || r.ranks[i] < best) {
			best = r.ranks[i]
		}
	}
	return best
}
