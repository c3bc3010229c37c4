// Package pool is the harvest resource pool (LIBRA, section 5): per node, what invocations in
// flight lend and borrow. Redis holds it. Package pooltest implements the same in one process, for
// tests, and is the executable specification of the Redis functions.
package pool

import (
	"context"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
)

// LeaseTTL is how long an owner's invocations, and an agent's heartbeat, last
// without being renewed.
const LeaseTTL = 5 * time.Second

// renewEvery is the age from which on a Begin renews a lease. Renew is called as often, so that not
// every Begin writes a lease.
const renewEvery = LeaseTTL / 5

// A strike of the safeguard suspends lending of a function's CPU for SuspendLeast, by its donors in
// flight or by its idle ones, whichever it was. Each further strike doubles that, up to SuspendMost.
// The strikes are forgotten when the CPU has been free to lend again for SuspendMost.
const (
	SuspendLeast = 10 * time.Second
	SuspendMost  = 10 * time.Minute
)

// UnseenMost is how long the pool assumes that a lapsed invocation is still in its pod, unless its
// owner says otherwise or the pod is seen at rest. It is as long as a request may last with
// Knative's default max-revision-timeout-seconds.
const UnseenMost = 10 * time.Minute

// IdleMost is how long after an End its pod, as an idle donor, lends to new borrowers. Loans that
// it has by then stay until the next Begin in the pod or the end of its Owner's lease.
const IdleMost = time.Minute

// Invocation is one request, as the pool sees it when it begins.
type Invocation struct {
	ID            string
	Function      string // namespace/revision
	Configuration string // namespace/name, or empty when it is not known
	Pod           string // namespace/name
	Domain        string // lending domain: entries match only within it
	Owner         string // incarnation of the activator that renews the lease
	Size          int64  // bytes, or api.UnknownSize

	// Allocation is what its pod's user container is owed: the limits in the Revision.
	// A resource without a limit is 0, and cannot be lent.
	Allocation api.Resources
	Predicted  api.Resources // zero when there was no prediction
	Duration   time.Duration // predicted; 0 when there was no prediction
	// WithoutLoan is the predicted duration if it borrows no CPU, at least the Duration. A loan is
	// worth what it takes off that.
	WithoutLoan time.Duration
	Surplus     api.Resources // what its pod can spare while it runs there alone
	Want        api.Resources // what it would borrow
	// WantMostMilli is the most CPU that it may come to want, judged by what it turns out to use
	// (Ask): at least the Want.
	WantMostMilli int64
	// Concurrency is how many invocations its pod takes at one time; 0 means 1. Up to that many in
	// a pod lend what they can spare together, and more lend nothing.
	Concurrency int
	// Need is what it needs of the Allocation next to others in its pod; the rest is lent there.
	// Zero means not known, which counts as all. Needs add up, so the pool counts what invocations
	// share in each of them.
	Need api.Resources
	// Others is how many other invocations, with lower Numbers, its Owner has in its Pod: all whose
	// End the pool has not answered, whether the pool was told of them or not. Those that the pool
	// does not know may have begun in another epoch, have lapsed, or are yet to be told of.
	Others int
	Number int64 // its place among its Owner's invocations, in the order in which they began
	// IdleCPUMilli is how much of the Allocation's CPU its pod lends after it has ended and left
	// the pod empty, until another begins there.
	IdleCPUMilli int64
	// MinRemaining is the least predicted remaining time that a donor must have for the invocation
	// to borrow from it, and that the invocation must have itself, WithoutLoan, to borrow after its
	// Begin: with less, a transfer would be over before it pays. Nothing is known about an
	// invocation that runs for longer than predicted: once it is overdue by as long, it may borrow
	// again.
	MinRemaining time.Duration

	// Ranked says that the node's agent is to rank its pod among those in flight, as under the
	// source node: the agent hears of its Begin, and a State lists it.
	Ranked bool
	// CPUTime is how much CPU time it is predicted to use; 0 when there was no prediction.
	CPUTime time.Duration

	// Trace is the W3C traceparent from which its trace goes on, or empty when the request is not
	// sampled.
	Trace string
}

// QuickCPU is the predicted CPU time below which a Ranked invocation is over so soon that its agent
// is told of only some: telling it costs more than the rank is worth. The agent assumes that those
// it is not told of are like those it is told of in the same pod.
const QuickCPU = 50 * time.Millisecond

// Ending is what is known of an invocation only when it has ended.
type Ending struct {
	ID       string
	Duration time.Duration
	Ago      time.Duration // how long the End has waited to be sent
	Status   int           // HTTP status of the response
	// Late says that the Begin was not sent as soon as the invocation began, that it is not known
	// how long ago it ended, or that others were in the pod of which the pool was not told, so that
	// what is measured may be another's, too. Its pod does not become an idle donor.
	Late bool
	// ComputesIn is the pod in which it may go on computing for a client that went away; empty
	// otherwise. Such an ending counts as Late, and as an unseen invocation in the pod until the
	// pod is seen at rest, whether or not the pool knew the invocation.
	ComputesIn string
	// BeginAnswered says that the pool has answered every Begin that was sent, so that none
	// can arrive any more.
	BeginAnswered bool
}

// Outcome is what became of an invocation that ended. Found is false when the pool did not know it:
// it never began, it ended before, or its lease expired.
type Outcome struct {
	Found          bool
	Alone          bool          // nothing else ran in its pod, from its Begin until its End
	Safeguarded    bool          // the safeguard took back what its pod had put in
	Lent, Borrowed api.Resources // the most at any time; Lent is by its pod while it was there
}

// Heartbeat is what a node's agent tells the pool once a second.
type Heartbeat struct {
	Agent string // incarnation of the agent
	// Epoch is the State's under which the agent has seen the node. A heartbeat of another epoch
	// does not open the node.
	Epoch string
	// Whole says that the agent has seen every container of the node at its user allocation at
	// least once under Epoch, so that nothing is lent that nobody would give back.
	Whole bool
	// Lendable is the most that may be on loan on the node at one time. When more is, nothing more
	// is lent, and what is on loan stays. Domains share it: while others want some and have surplus
	// for it in their domain, a domain borrows no more than an equal part, which grows by what
	// domains leave that have less and want no more. CPU that a domain has beyond its part goes to
	// the others that want it with the next Heartbeat. Memory may be in use, so the domain keeps
	// it. Where there is not enough for all that a Heartbeat finds wanting, the domains take turns
	// to be lent to first.
	Lendable api.Resources
	// Capacity is what the node has, and Idle what nobody uses of it; for CPU, over the last
	// second. A Capacity of zero is not known. Both are for placing requests (Profile); what is
	// lent does not depend on them.
	Capacity, Idle api.Resources
	// Pods has, by namespace/name, the pods that take part and the bytes of memory that each keeps.
	// Loans of those bytes end, and so do all loans to and from a pod that no longer takes part.
	Pods map[string]int64
	// Needs has, by namespace/name, the pods whose memory limit must be above what they are owed,
	// whatever is on loan, and the least limit in bytes. That is what a pod uses already, or what
	// it needs so as not to be killed.
	Needs map[string]int64
	// Rested are pods that use no CPU, among those in the State's Unseen, or among all that take
	// part when it is not Open. Anything in them is over that by RestedAt had lapsed, had been left by
	// its client or, where it began before the epoch or another version was told of it, had begun.
	Rested []string
	// RestedAt is a time of the pool's clock since which Rested have used no CPU.
	RestedAt time.Time
}

// Balance is what a pod has borrowed and lent now. Its effective limit is Allocation + Borrowed -
// Lent, where Allocation is that of the invocation in flight that began last, or of the last one
// when none is in flight.
type Balance struct {
	Borrowed, Lent, Allocation api.Resources
	Idle                       bool // nothing is in flight in it
	// Short is how many bytes of memory the invocations in it want and have not borrowed.
	Short int64
	// Trace is the trace of the newest traced invocation among those in the pod and in the pods
	// that it has loans with.
	Trace string
}

// Suspension says until when a function's donors put no CPU into the pool: those in flight, or the Idle ones.
type Suspension struct {
	Function string // namespace/revision
	Idle     bool
	Until    time.Time
}

// Compare orders Suspensions by function, those of donors in flight first.
func (s Suspension) Compare(o Suspension) int {
	if c := strings.Compare(s.Function, o.Function); c != 0 || s.Idle == o.Idle {
		return c
	}
	if s.Idle {
		return 1
	}
	return -1
}

// Flight is an invocation in flight that is Ranked.
type Flight struct {
	ID      string
	Age     time.Duration // since its Begin
	CPUTime time.Duration // predicted; 0 when there was no prediction
}

// State is a node's pool at one moment. A pod without a balance is at its user
// allocation, and wants no more memory.
type State struct {
	// Epoch changes whenever Redis may have lost or restored anything of the node.
	Epoch string
	// Agent is the incarnation whose heartbeat came within the last LeaseTTL; empty when none did.
	Agent string
	Open  bool // whether anything is lent now

	// Now is the time of the State, in milliseconds, by the pool's clock.
	Now time.Time

	Pods      map[string]Balance  // by namespace/name
	Needs     map[string]int64    // by namespace/name, of the Agent's last heartbeat
	InFlight  map[string][]Flight // by namespace/name, in the order of their Begins
	Available api.Resources       // surplus in the pool that nobody has borrowed
	Suspended []Suspension        // in the order of Compare
	// Unseen are the pods, by namespace/name, in which there may be invocations that began before
	// the epoch, that have lapsed, whose clients went away, or that another version was told of.
	Unseen []string
	// Raised are the pods, by namespace/name, that borrow CPU or did since the last Heartbeat: an
	// agent that hangs may have left them with more than they are owed.
	Raised []string
	Begun  int // invocations in flight
}

// Pool is the pool of all nodes. Every method is atomic per node, takes one
// round trip, and is safe to retry: a repeated call changes nothing more.
type Pool interface {
	// Begin puts the invocation's surplus into its node's pool and takes up to what it wants, from
	// the longest-lasting entries of its domain first. It returns what was borrowed. Nothing is
	// lent on a node that is not open, or to or from a pod that does not take part (Heartbeat). A
	// pod keeps its memory floor and 1 milli CPU of its Allocation, and a function whose
	// donors in flight are suspended (Safeguard) puts in no CPU.
	//
	// A pod's share is one entry. With several invocations in the pod, up to their Concurrency, the
	// entry is the least of each Surplus and of the Allocation minus all their Needs. Loans above
	// that end, starting with the borrower that ends first. With more invocations than their
	// Concurrency, the entry is nothing.
	//
	// A pod lends nothing, and no invocation in it counts as alone, while there are unseen ones in
	// it:
	//   - Others that the pool does not know, until their Owner's next Begin there counts fewer or
	//     the unknown ones' Begins arrive. In a pod with no known invocation, they lapse with a
	//     Heartbeat that does not name the pod.
	//   - Lapsed invocations, until their Owner's next Begin there does not count them, the pod is
	//     seen at rest (Heartbeat), or UnseenMost has passed.
	//   - Invocations that compute for a client that went away (Ending), until the pod is seen at
	//     rest or UnseenMost has passed. Those in flight when an epoch ended count the same, in any
	//     pod that takes part when the next epoch's first Whole Heartbeat comes; and so do those
	//     that another version of the pool was told of, with the next Whole Heartbeat after that.
	//
	// An End that leaves a pod empty makes it an idle donor, which lends the invocation's
	// IdleCPUMilli for IdleMost, unless the End is Late or the function's idle donors are
	// suspended. It stays one until the next Begin in the pod, which treats its loans like any
	// others, until its safeguard fires, or until its Owner's lease expires.
	//
	// An invocation that still wants something, because there was not enough or a donor has ended,
	// gets it when a Begin puts surplus into its domain, a loan there ends, or a Heartbeat comes.
	// The last to end comes first. The donor must have MinRemaining to go. So must the invocation,
	// WithoutLoan, unless it has outlived its prediction by as long.
	Begin(ctx context.Context, node string, inv Invocation) (borrowed api.Resources, err error)
	// End takes the invocation out. Its pod's loans are revoked (preemptive release), unless others
	// are left in the pod, which may then lend more. Everything that it borrowed goes back with its
	// original expiry (re-harvest). For one LeaseTTL, a Begin that the End overtook, or that
	// arrives again, is a no-op, unless the Ending rules that out.
	End(ctx context.Context, node string, e Ending) (Outcome, error)
	// BeginAfter does an End for each of ended, and then a Begin. After an error it is not known
	// which of them were done, if any.
	BeginAfter(ctx context.Context, node string, ended []Ending, inv Invocation) ([]Outcome, api.Resources, error)
	// Renew keeps the owner's invocations and idle donors on the node for another LeaseTTL. Call it
	// every second while there are any: a Begin starts a lease, but renews only one that is older
	// than that. After a lease has expired, Begin and Renew first end what its owner had, all of
	// which may still run, unseen.
	Renew(ctx context.Context, node, owner string) error
	// Heartbeat says which pods take part and how much may be lent on the node, and returns whether
	// the node is open: for another LeaseTTL, when the agent has seen it Whole under its present
	// epoch. The last heartbeat counts, whoever sent it. While another version of the pool has been
	// told of invocations there (Begin, Renew) within the last LeaseTTL, the node is closed, and
	// what is on loan ends with the next Heartbeat.
	Heartbeat(ctx context.Context, node string, hb Heartbeat) (open bool, err error)
	// Safeguard takes all the CPU that the pod put in, lent or not, out of the node's pool,
	// suspends its function's donors in flight or its idle ones, whichever the pod is, and returns
	// how much was on loan, in milli CPU. The invocations in the pod lend no more of it. Nothing changes when the pod put in none, or when
	// it is no longer, or not yet, idle as the agent saw it: then the use was not that of the
	// present donor. Memory needs no safeguard: a limit on it is never lowered.
	Safeguard(ctx context.Context, node, pod string, idle bool) (revokedMilli int64, err error)
	// Ask says how much CPU, in milli, the invocations in a pod want to borrow in all, judged by
	// what the pod turns out to use. From then on, the first to begin wants that, or its
	// WantMostMilli where that is less, the next one wants what is left, and so on. CPU that one
	// has borrowed above its want goes back, first to the donors that end first.
	Ask(ctx context.Context, node, pod string, milli int64) error
	// Read ends every invocation whose owner's lease has expired, and returns the state.
	Read(ctx context.Context, node string) (State, error)
}
