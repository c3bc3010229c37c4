// Package placement chooses the pod that a request goes to, among those that Knative could have given it (LIBRA,
// section 6). It takes no slot: Knative has reserved one. When a policy names another pod with a free slot, the
// request goes there instead.
package placement

import (
	"math/rand/v2"
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
)

// Query is what is known about a request when its pod is chosen.
type Query struct {
	Revision types.NamespacedName
	// Demand is what the request would borrow beyond its allocation. It is zero if the request cannot be accelerated
	// or has no prediction.
	Demand Demand
	Now    time.Time
	// Others says that a program that allows none of these candidates is asked about others, for the same request.
	Others bool
	// Rand is the source of randomness. Nil is the global one, which nobody seeds.
	Rand *rand.Rand
	// Order determines the order in which a program tries what it leaves to chance, so that it is the same each time
	// that the program is asked about the request; 0 is none. Forwarded says that another activator has passed the
	// request on.
	Order     uint64
	Forwarded bool

	// slots is where the candidates' pods are from, or nil.
	slots *Slots
	// keeps is the revision whose candidates these are, if it keeps them sorted.
	keeps *Revision
	// activators is how many activators share the revision's pods.
	activators int
	// spreadTo is the pod that Knative picked, if Knative spreads the revision's requests over its pods.
	spreadTo string
	// debited says to debit the demand from the chosen candidate's node.
	debited bool
	memory
}

// memory is the working memory of Coverage. It is kept from one request to the next, so that none is allocated.
type memory struct {
	prospects []prospect
	visited   []uint64 // nodes, as bits by the slots of their Views
}

// OnNode returns how many requests this activator has on a candidate's node, of all revisions whose requests it
// counts.
func (q *Query) OnNode(c *Candidate) int {
	if q.slots == nil {
		return c.InFlight
	}
	return max(c.InFlight, q.slots.onNodes.of(c.NodeID))
}

// Below returns a random number from 0 to n-1.
func (q *Query) Below(n int) int {
	if q.Rand == nil {
		return rand.IntN(n)
	}
	return q.Rand.IntN(n)
}

// Uint64 returns a random number.
func (q *Query) Uint64() uint64 {
	if q.Rand == nil {
		return rand.Uint64()
	}
	return q.Rand.Uint64()
}

// Demand is a volume for a time (LIBRA, section 6.1).
type Demand struct {
	Want     api.Resources
	Duration time.Duration
	// OwnCPUMilli is what the request uses of its own allocation. Nobody lends it that, but it comes out of what a
	// node has idle.
	OwnCPUMilli int64
}

// Accelerable says whether the request could end sooner in one place than in another.
func (d Demand) Accelerable() bool { return !d.Want.IsZero() && d.Duration > 0 }

// Candidate is a pod of the revision that is ready and has a free slot, as this activator sees it. It has only what
// policies compare, and little room for it, because they go through all candidates on each request.
type Candidate struct {
	*Target
	// View is the pool of its node, as functions of its namespace see it.
	View     *View
	InFlight int    // this activator's requests in the pod
	hash     uint64 // of Node
	// slots are those of the View in its boards; the one for idle CPU is set only if the source is the node.
	slots  viewSlots
	NodeID NodeID // of Node, or 0
	// own says that the node is one that this activator prefers to those of others.
	own bool
}

// Target is where the requests that go to a candidate go.
type Target struct {
	Node string
	Dest string // ip:port
	// Source is where the pod borrows from.
	Source api.Source
}

// NewCandidate returns a candidate without requests. The View may be nil, for a node that is not known.
func NewCandidate(t *Target, v *View) Candidate {
	return Candidate{Target: t, View: v, hash: xxhash.Sum64String(t.Node), slots: v.slotsOf(t.Source), NodeID: NodeIDOf(t.Node)}
}

// Policy returns the index of the candidate that the request goes to. There is at least one candidate. Knative's
// pick comes first if it is a candidate, and the order of the others means nothing. A Policy must not block,
// allocate, or keep the candidates, and must be safe for concurrent use.
type Policy func(q *Query, candidates []Candidate) int

// Program says where requests to a revision may go, as an operator wrote it in a PlacementPolicy.
type Program interface {
	// Place returns the index of the candidate, and for the trace the number of the block that named it. If the
	// program allows none, the index is -1, and the request is refused.
	Place(q *Query, candidates []Candidate) (index, block int)
	// RefusedBy names the policy that refuses a request of a namespace.
	RefusedBy(namespace string) string
}

// Router is a Program that may let an activator in another zone place a request.
type Router interface {
	Program
	// Routes says whether it may do so for functions of a namespace.
	Routes(namespace string) bool
	// Route says whether to pass the request on to an activator in another zone, and in which. reachable says whether
	// a zone has an activator that can be reached. candidates returns the pods with a free slot, if there are any
	// yet: Route calls it only if it needs them.
	Route(q *Query, candidates func() []Candidate, reachable func(zone string) bool) (zone string, forward bool)
}

// Programs are the programs in force.
type Programs interface {
	// Of returns nil if no PlacementPolicy applies: then the default policy decides. The tag is the revision's label
	// libra.dev/placement, or empty.
	Of(namespace, tag string) Program
}
