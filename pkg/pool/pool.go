// Package pool is the harvest resource pool (LIBRA, section 5): per node, what
// invocations in flight lend and borrow. Redis holds it. Package pooltest is the same
// in one process, for tests, and the executable specification of the Redis functions.
package pool

import (
	"context"
	"time"

	"libra.dev/libra/pkg/api"
)

// LeaseTTL is how long an owner's invocations, and an agent's heartbeat, last
// without being renewed.
const LeaseTTL = 5 * time.Second

// renewEvery is the age from which on a Begin renews a lease. Renew is called as
// often, so that a lease is not written by every Begin.
const renewEvery = LeaseTTL / 5

// A strike of the safeguard suspends lending of a function's CPU for SuspendLeast, which
// doubles with each further one up to SuspendMost. The strikes are forgotten when it has
// been lent again for SuspendMost.
const (
	SuspendLeast = 10 * time.Second
	SuspendMost  = 10 * time.Minute
)

// UnseenMost is how long what has lapsed is taken to be in its pod, unless its owner says
// otherwise or the pod is seen at rest: as long as a request may last where Knative's
// max-revision-timeout-seconds is its default.
const UnseenMost = 10 * time.Minute

// IdleMost is how long after an End its pod is lent from to those who begin to borrow, as an idle
// donor. What is on loan by then stays: that ends with the next Begin in the pod, or with its
// Owner's lease.
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
	// WithoutLoan is the predicted duration if it borrows no CPU, off which a loan takes what the
	// loan is worth: at least the Duration.
	WithoutLoan time.Duration
	Surplus     api.Resources // what its pod can spare while it runs there alone
	Want        api.Resources // what it would borrow
	// WantMostMilli is how much CPU it may come to want by what it turns out to use (Ask): at
	// least the Want.
	WantMostMilli int64
	// Concurrency is how many invocations its pod takes at one time; 0 is as 1. Up to so
	// many in a pod leave what they can spare together, and more leave nothing.
	Concurrency int
	// Need is what it needs of the Allocation beside others in its pod, and what it does not
	// need there is lent. Zero is not known, which is all. Needs add up, so that the pool
	// counts what they share in each.
	Need api.Resources
	// Others is how many others, with lower Numbers, its Owner has in its Pod: all whose End
	// the pool has not answered, whether it was told of them or not. Those of them that the
	// pool does not know may have begun in another epoch, have lapsed, or are to be told of.
	Others int
	Number int64 // of its Owner's, in the order in which they began
	// IdleCPUMilli is how much of the Allocation's CPU its pod lends when this one has ended and
	// none is left in it, until another begins there.
	IdleCPUMilli int64
	// MinRemaining is the least predicted remaining time of a donor to borrow from, and
	// of itself, WithoutLoan, to borrow after its Begin: below it a transfer would be over
	// before it pays. Of one that runs for longer than was predicted nothing is known: once
	// it is overdue by as long, it may borrow again.
	MinRemaining time.Duration

	// Ranked says that the node's agent is to rank its pod among those in flight, as under
	// the source node: the agent hears of its Begin, and a State tells of it.
	Ranked bool
	// CPUTime is how much CPU time it is predicted to use; 0 when there was no prediction.
	CPUTime time.Duration

	// Trace is where its trace goes on: a W3C traceparent, or empty when the request is
	// not sampled.
	Trace string
}

// QuickCPU is the predicted CPU time below which a Ranked invocation is over so soon that its
// agent is told of some only: to be told of one costs more than its rank is worth. Of a pod of
// which it is told of such, the agent takes it that those which it is not told of are alike.
const QuickCPU = 50 * time.Millisecond

// Ending is what is known of an invocation only when it has ended.
type Ending struct {
	ID       string
	Duration time.Duration
	Ago      time.Duration // for how long the End has waited to be sent
	Status   int           // HTTP status of the response
	// Late says that the Begin was not sent as soon as the invocation began, that it is not
	// known how long ago it ended, or that others were in the pod of which the pool was not
	// told, so that what is measured may be another's, too. The pod may not be idle after it.
	Late bool
	// ComputesIn is the pod in which it may go on computing, for a client that went away; empty
	// otherwise. It counts as Late, and as an unseen one in the pod until that is seen at rest,
	// whether or not the pool knew the invocation.
	ComputesIn string
	// BeginAnswered says that the pool has answered every Begin that was sent, so that none
	// can arrive any more.
	BeginAnswered bool
}

// Outcome is what became of an invocation that ended. Found is false when the
// pool did not know it: it never began, it ended before, or its lease ran out.
type Outcome struct {
	Found          bool
	Alone          bool          // nothing else ran in its pod, from its Begin until its End
	Safeguarded    bool          // the safeguard took back what its pod had put in
	Lent, Borrowed api.Resources // the most at any time; lent by its pod, while it was in it
}

// Heartbeat is what a node's agent tells the pool once a second.
type Heartbeat struct {
	Agent string // incarnation of the agent
	// Epoch is the State's under which the agent has seen the node. A heartbeat of
	// another epoch does not open the node.
	Epoch string
	// Whole says that every container of the node was seen at its user allocation at
	// least once under Epoch, so that nothing is lent that nobody would give back.
	Whole bool
	// Lendable is the most that may be on loan on the node at one time. When more is,
	// nothing more is lent, and what is on loan stays. Domains share it: while others want some
	// that there is surplus in their domain for, a domain borrows no more than an equal part of
	// it, to which those add that have less and want no more. What it had of CPU beyond that, it
	// loses with the next Heartbeat to those who want it; of memory, which may be in use, it keeps
	// it. Where there is not enough for all that a Heartbeat finds wanting, the domains take turns
	// to be the first to be lent to.
	Lendable api.Resources
	// Capacity is what the node has, and Idle what of it nobody uses: of CPU over the last second. A
	// Capacity of zero is not known. They are for who places requests (Profile); what is lent does
	// not depend on them.
	Capacity, Idle api.Resources
	// Pods are, by namespace/name, the pods that take part, and the bytes of memory that each
	// keeps. What a pod lends of those, and all loans to and from a pod that takes part no
	// more, end.
	Pods map[string]int64
	// Needs are, by namespace/name, the pods whose memory limit has to be above what they are
	// owed, whatever is on loan: of so many bytes at least. It is what they use already, or
	// what they need so as not to be killed.
	Needs map[string]int64
	// Rested are pods that use no CPU, of those that the State calls Unseen, or of all that take part
	// where it is not Open: what has lapsed there, had begun before the epoch, or computed for a
	// client that went away, is over.
	Rested []string
}

// Balance is what a pod has borrowed and lent now. Its effective limit is
// Allocation + Borrowed - Lent, where Allocation is that of the latest to begin
// of its invocations in flight, or of the last that was.
type Balance struct {
	Borrowed, Lent, Allocation api.Resources
	Idle                       bool // nothing is in flight in it
	// Short is how many bytes of memory the invocations in it want and have not borrowed.
	Short int64
	// Trace is that of the newest that has one, of the invocations in the pod and in those
	// that it has loans with.
	Trace string
}

// Suspension says until when a function puts no CPU into the pool.
type Suspension struct {
	Function string // namespace/revision
	Until    time.Time
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
	// Agent is the incarnation whose heartbeat came within the last LeaseTTL; empty
	// when none did.
	Agent string
	Open  bool // whether anything is lent now

	// Now is when that was, in milliseconds, by the pool's clock.
	Now time.Time

	Pods      map[string]Balance  // by namespace/name
	Needs     map[string]int64    // by namespace/name, of the Agent's last heartbeat
	InFlight  map[string][]Flight // by namespace/name, in the order of their Begins
	Available api.Resources       // surplus in the pool that nobody has borrowed
	Suspended []Suspension        // by Function
	// Unseen are the pods, by namespace/name, in which there may be invocations that had begun before
	// the epoch, that have lapsed, or whose clients went away.
	Unseen []string
	// Raised are the pods, by namespace/name, that borrow CPU, or have since the last Heartbeat:
	// those which an agent that hangs may have left with more than they are owed.
	Raised []string
	Begun  int // invocations in flight
}

// Pool is the pool of all nodes. Every method is atomic per node, takes one
// round trip, and is safe to retry: a repeated call changes nothing more.
type Pool interface {
	// Begin puts the invocation's surplus into its node's pool and takes, from
	// the longest-lasting entries of its domain first, up to what it wants. It
	// returns what was borrowed. Nothing is lent on a node that is not open, or to or from
	// a pod that does not take part (Heartbeat). A pod keeps its memory floor and 1 milli
	// CPU of its Allocation, and a function that is suspended (Safeguard) puts in no CPU.
	//
	// What a pod puts in is one entry. Of several invocations begun in it, no more than
	// their Concurrency, it is the least of the Allocation less all their Needs and of each
	// Surplus; what is on loan above that ends, of the borrower that is the first to end
	// first. With more begun than their Concurrency it is nothing.
	//
	// A pod lends nothing, and nobody counts as alone in it, while there are unseen ones in it:
	// Others that the pool does not know, until their Owner's next Begin there counts fewer or
	// what it did not know of begins (in a pod in which none is known, they lapse with a Heartbeat
	// that does not name it); what has lapsed, until its Owner's next Begin there
	// does not count it, its pod is seen at rest (Heartbeat), or for UnseenMost; and what computes
	// for a client that went away (Ending), until its pod is seen at rest, or for UnseenMost. So is
	// what was in flight when an epoch ended, in any of the pods that take part when the next one's
	// first Whole Heartbeat comes.
	//
	// An End that leaves a pod empty makes it an idle donor, which lends the CPU that the
	// invocation said, but for one that is Late or of a function that is suspended. It is one
	// until the next Begin in the pod, of which the loans count like others', until its
	// safeguard fires or its Owner's lease runs out, and lasts for IdleMost.
	//
	// What an invocation still wants, because there was not enough or a donor has
	// ended, it gets when a Begin puts surplus into its domain, a loan there ends, or a
	// Heartbeat comes: the last to end first, and only while the donor and it, WithoutLoan,
	// both have MinRemaining to go, or when it has outlived its prediction by as long.
	Begin(ctx context.Context, node string, inv Invocation) (borrowed api.Resources, err error)
	// End takes the invocation out: its pod's loans are revoked (preemptive release),
	// unless others are left in the pod, which may lend more then; what it borrowed
	// goes back with its original expiry (re-harvest). For one LeaseTTL, a Begin that the
	// End overtook, or that arrives again, is a no-op, unless the Ending rules that out.
	End(ctx context.Context, node string, e Ending) (Outcome, error)
	// BeginAfter is an End of each that has ended, and then a Begin. With an error it is not
	// known which of them were done, if any.
	BeginAfter(ctx context.Context, node string, ended []Ending, inv Invocation) ([]Outcome, api.Resources, error)
	// Renew keeps the owner's invocations on the node, and its idle donors, for another
	// LeaseTTL. It is to be called every second while there are any: a Begin starts a lease, and renews only
	// one that is older than that. After a lease ran out, both first end what its owner
	// had, all of which may still run, unseen.
	Renew(ctx context.Context, node, owner string) error
	// Heartbeat says who takes part and how much may be lent on the node, and returns
	// whether the node is open: for another LeaseTTL, when the agent has seen it Whole
	// under its present epoch. The last heartbeat stands, whoever sent it. A node is closed, and
	// what is on loan ends with the next Heartbeat, while another version of the pool has been
	// told of invocations there (Begin, Renew) within the last LeaseTTL.
	Heartbeat(ctx context.Context, node string, hb Heartbeat) (open bool, err error)
	// Safeguard takes out of the node's pool all the CPU that the pod put in, lent or not,
	// suspends lending of its function, and returns how much was on loan, in milli CPU. The
	// invocations in the pod lend no more of it. When none was put in, nothing changes, nor when
	// the pod is not idle any more as it was seen, or not yet: that what it used was not what lends
	// now. Memory needs no safeguard: a limit on it is never lowered.
	Safeguard(ctx context.Context, node, pod string, idle bool) (revokedMilli int64, err error)
	// Ask says how much CPU, in milli, those in a pod want to borrow in all, by what it turns out to
	// use. The first to begin wants that from then on, or its WantMostMilli where that is less, the
	// next what that leaves, and so on; what one has borrowed above it goes back, to the donors that
	// are the first to end first.
	Ask(ctx context.Context, node, pod string, milli int64) error
	// Read ends every invocation whose owner's lease ran out, and returns the state.
	Read(ctx context.Context, node string) (State, error)
}
