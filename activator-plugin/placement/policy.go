// Package placement chooses the pod that a request goes to, of those that Knative could
// have given it (LIBRA, section 6). It takes no slot: Knative has reserved one, and where a
// policy names another pod with a free slot, the request goes there instead.
package placement

import (
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
)

// Query is what is known of a request when its pod is chosen.
type Query struct {
	Revision types.NamespacedName
	// Demand is what it would borrow beyond its allocation; zero for one that cannot be
	// accelerated, or that there is no prediction of.
	Demand Demand
	Now    time.Time
	// Others says that a program which leaves none of these is asked about others, for the same request.
	Others bool
	// Rand is where chance comes from. Nil is one that nobody has seeded.
	Rand *rand.Rand
	// Order is what a program orders by what it leaves to chance, where it is asked about the same request
	// more than once; 0 is none. Forwarded says that another activator has passed the request on.
	Order     uint64
	Forwarded bool

	// slots are those of the candidates' pods, or nil.
	slots *Slots
	// keeps is the revision whose candidates these are, where it keeps them sorted.
	keeps *Revision
	// activators is how many share the revision's pods.
	activators int
	// debited says that the demand is to be taken off what the node of the one that is chosen can lend.
	debited bool
}

// OnNode is how many requests this activator has on a candidate's node, of all revisions whose requests it counts.
func (q *Query) OnNode(c *Candidate) int {
	if q.slots == nil {
		return c.InFlight
	}
	return max(c.InFlight, q.slots.onNodes.of(c.NodeID))
}

// below returns a number from 0 to n-1 by chance.
func (q *Query) below(n int) int {
	if q.Rand == nil {
		return rand.IntN(n)
	}
	return q.Rand.IntN(n)
}

// Demand is a volume for a time (LIBRA, section 6.1).
type Demand struct {
	Want     api.Resources
	Duration time.Duration
	// OwnCPUMilli is what it uses of its own allocation. Nobody lends it that, but it is of what a
	// node has idle.
	OwnCPUMilli int64
}

// Accelerable says whether the request could end sooner in one place than in another.
func (d Demand) Accelerable() bool { return !d.Want.IsZero() && d.Duration > 0 }

// Candidate is a pod of the revision that is ready and has a free slot, as this activator
// sees it.
type Candidate struct {
	// View is its node's pool, as functions of its namespace see it.
	View     *View
	InFlight int // this activator's requests in the pod
	// slots are those of the View's boards; of idle CPU only if the source is the node. Without any, the View
	// is asked.
	slots  viewSlots
	NodeID NodeID // of Node, or 0
	// own says that the node is one of those that this activator prefers to others'.
	own  bool
	Node string
	Dest string // ip:port
	Pod  string // namespace/name
	// Source is where the pod borrows from.
	Source api.Source
}

// Policy returns the index of the candidate that the request goes to. There is always one at
// least, and the first is the one that Knative picked, if that is one. The order of the others means
// nothing. It must not wait, allocate, or keep the candidates, and several may ask it at a time.
type Policy func(q *Query, candidates []Candidate) int

// Program says where requests to a revision may go, as an operator wrote it in a
// PlacementPolicy.
type Program interface {
	// Place returns the index of the candidate, and the number of the block that named it, for the
	// trace. With none left it is -1, and the request is refused.
	Place(q *Query, candidates []Candidate) (index, block int)
}

// Router is a Program that may have a request placed by an activator in another zone.
type Router interface {
	Program
	// Routes says whether it may, for functions of a namespace.
	Routes(namespace string) bool
	// Route says whether the request is to be passed on to an activator in a zone, of which reachable says
	// whether it has one that can be. The candidates are the pods with a free slot, if there are any yet: whoever
	// needs none does not ask for them.
	Route(q *Query, candidates func() []Candidate, reachable func(zone string) bool) (zone string, forward bool)
}

// Programs are those in force.
type Programs interface {
	// Of returns nil where nobody has said anything: then the default policy decides. The tag is
	// the revision's label libra.dev/placement, or empty.
	Of(namespace, tag string) Program
}
