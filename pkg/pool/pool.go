// Package pool is the harvest resource pool (LIBRA, section 5): per node, what
// invocations in flight lend and borrow. Redis holds it; Memory is the same
// in one process and the executable specification of the Redis functions.
package pool

import (
	"context"
	"time"

	"libra.dev/libra/pkg/api"
)

// LeaseTTL is how long an owner's invocations, and a node's permission to lend,
// last without being renewed.
const LeaseTTL = 5 * time.Second

// Invocation is one request, as the pool sees it when it begins.
type Invocation struct {
	ID            string
	Function      string // namespace/revision
	Configuration string // namespace/name, or empty when it is not known
	Pod           string // namespace/name
	Domain        string // lending domain: entries match only within it
	Owner         string // incarnation of the activator that renews the lease
	Size          int64  // bytes, or api.UnknownSize

	Predicted api.Resources // zero when there was no prediction
	Duration  time.Duration // predicted; 0 when there was no prediction
	Surplus   api.Resources // what its pod can spare while it runs
	Want      api.Resources // what it would borrow
	// MinRemaining is the least predicted remaining time of a donor to borrow from, and
	// of itself to borrow after its Begin: below it a transfer would be over before it pays.
	MinRemaining time.Duration
}

// Ending is what is known of an invocation only when it has ended.
type Ending struct {
	ID       string
	Duration time.Duration
	Status   int // HTTP status of the response
	// Late says that the Begin or the End was not sent as soon as the invocation began
	// or ended, so that what is measured between them may be another's, too.
	Late bool
}

// Outcome is what became of an invocation that ended. Found is false when the
// pool did not know it: it never began, it ended before, or its lease ran out.
type Outcome struct {
	Found          bool
	Alone          bool          // nothing else ran in its pod, from its Begin until its End
	Lent, Borrowed api.Resources // the most at any time
}

// Balance is what a pod has borrowed and lent now. Its effective limit is the
// user allocation + Borrowed - Lent.
type Balance struct {
	Borrowed, Lent api.Resources
}

// State is a node's pool at one moment. A pod without a balance is at its user
// allocation.
type State struct {
	Pods      map[string]Balance // by namespace/name
	Available api.Resources      // surplus in the pool that nobody has borrowed
	Begun     int                // invocations in flight
}

// Pool is the pool of all nodes. Every method is atomic per node, takes one
// round trip, and is safe to retry: a repeated call changes nothing more.
type Pool interface {
	// Begin puts the invocation's surplus into its node's pool and takes, from
	// the longest-lasting entries of its domain first, up to what it wants. It
	// returns what was borrowed. Nothing is lent on a node that is not open, nor
	// from a pod with more than one invocation begun.
	//
	// What an invocation still wants, because there was not enough or a donor has
	// ended, it gets when a Begin or an End leaves surplus in its domain: the last to
	// end first, and only while it and the donor both have MinRemaining to go.
	Begin(ctx context.Context, node string, inv Invocation) (borrowed api.Resources, err error)
	// End takes the invocation out: its loans are revoked (preemptive release),
	// what it borrowed goes back with its original expiry (re-harvest). For one
	// LeaseTTL, a Begin that the End overtook, or that arrives again, is a no-op.
	End(ctx context.Context, node string, e Ending) (Outcome, error)
	// Renew keeps the owner's invocations on the node for another LeaseTTL. After
	// its lease ran out, this and Begin first end what it had.
	Renew(ctx context.Context, node, owner string) error
	// Open lets the node lend for another LeaseTTL. The resizer calls it while it
	// runs and has seen every container of the node whole at least once since the
	// pool was empty, so that nothing is lent that nobody would give back. A pool
	// that is lost is closed; so Redis must not restore an old one from disk.
	Open(ctx context.Context, node string) error
	// Read ends every invocation whose owner's lease ran out, and returns the state.
	Read(ctx context.Context, node string) (State, error)
}
