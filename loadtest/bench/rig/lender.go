package rig

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
)

const (
	renewEvery = time.Second
	// No invocation lasts as long as predicted, so that only the bench ends a loan.
	predictedDuration = time.Minute
	minRemaining      = 300 * time.Millisecond

	lendingTimeout = 2 * time.Minute
)

// Lender begins and ends invocations as an activator does, in the real pool, but
// without their requests.
type Lender struct {
	pool   *pool.Redis
	owner  string
	begun  int
	renews chan struct{} // closed when leases are no longer renewed
	stop   context.CancelFunc
}

// NewLender makes a Lender that keeps its leases until it is closed.
func (r *Rig) NewLender(ctx context.Context) (*Lender, error) {
	addr, err := r.RedisAddr(ctx)
	if err != nil {
		return nil, err
	}
	return newLender(ctx, addr), nil
}

func newLender(ctx context.Context, addr string) *Lender {
	ctx, stop := context.WithCancel(ctx)
	l := &Lender{
		pool:   pool.NewRedis(redisconn.MustParse(addr)),
		owner:  fmt.Sprintf("bench.%d", time.Now().UnixNano()),
		renews: make(chan struct{}),
		stop:   stop,
	}
	go func() {
		defer close(l.renews)
		for Pause(ctx, renewEvery) == nil {
			// The next renewal makes up for one that fails.
			_ = l.pool.Renew(ctx, Node, l.owner)
		}
	}()
	return l
}

// RedisAddr returns the address of the Redis with the pools.
func (r *Rig) RedisAddr(ctx context.Context) (string, error) {
	service, err := r.Kube.CoreV1().Services(LibraNamespace).Get(ctx, "redis", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find Libra's Redis (`demo install` installs it): %w", err)
	}
	return service.Spec.ClusterIP + ":6379", nil
}

// Close lets the leases expire, and so ends every invocation that was not ended.
func (l *Lender) Close() error {
	l.stop()
	<-l.renews
	return l.pool.Close()
}

// Loan is a loan in the pool. Donor and Borrower are the IDs of the invocations.
type Loan struct {
	Donor, Borrower string
	Volume          api.Resources
	// Asked is when the borrower's Begin was sent.
	Asked time.Time
}

// Begin begins an invocation in the pod and returns its ID. Each one is of a
// separate function, because the safeguard suspends all of a function's donors in flight.
func (l *Lender) Begin(ctx context.Context, p Pod, surplus, want api.Resources) (id string, borrowed api.Resources, err error) {
	return l.BeginOf(ctx, strconv.Itoa(l.begun+1), p, surplus, want)
}

// BeginOf is Begin for a function of that name.
func (l *Lender) BeginOf(ctx context.Context, name string, p Pod, surplus, want api.Resources) (id string, borrowed api.Resources, err error) {
	l.begun++
	id = l.owner + "." + strconv.Itoa(l.begun)
	borrowed, err = l.pool.Begin(ctx, Node, pool.Invocation{
		ID:           id,
		Function:     "bench/" + l.owner + "-" + name,
		Pod:          p.Key(),
		Domain:       "bench",
		Owner:        l.owner,
		Size:         api.UnknownSize,
		Allocation:   p.Allocation,
		Duration:     predictedDuration,
		Surplus:      surplus,
		Want:         want,
		MinRemaining: minRemaining,
		IdleCPUMilli: surplus.CPUMilli,
	})
	return id, borrowed, err
}

// EndIdle ends an invocation and leaves its pod an idle donor.
func (l *Lender) EndIdle(ctx context.Context, id string) error {
	_, err := l.pool.End(ctx, Node, pool.Ending{ID: id})
	return err
}

// End ends invocations. They count as late, because there is nothing to learn from
// them.
func (l *Lender) End(ctx context.Context, ids ...string) error {
	var errs []error
	for _, id := range ids {
		_, err := l.pool.End(ctx, Node, pool.Ending{ID: id, Late: true})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Loan begins a donor and a borrower, and retries until at least least milli CPU is
// lent: a busy node has no room. refused counts the refusals.
func (l *Lender) Loan(ctx context.Context, donor, borrower Pod, volume api.Resources, least int64) (loan Loan, refused int, err error) {
	err = Eventually(ctx, lendingTimeout, func(ctx context.Context) error {
		if loan.Donor, _, err = l.Begin(ctx, donor, volume, api.Resources{}); err != nil {
			return err
		}
		loan.Asked = time.Now()
		if loan.Borrower, loan.Volume, err = l.Begin(ctx, borrower, api.Resources{}, volume); err != nil {
			return err
		}
		if loan.Volume.CPUMilli >= least {
			return nil
		}
		refused++
		return errors.Join(fmt.Errorf("of the %dm wanted, %dm were lent", volume.CPUMilli, loan.Volume.CPUMilli), l.End(ctx, loan.Borrower, loan.Donor))
	})
	return loan, refused, l.explained(ctx, err)
}

// explained adds the state of the pool to an error.
func (l *Lender) explained(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	state, readErr := l.pool.Read(context.WithoutCancel(ctx), Node)
	if readErr != nil {
		return errors.Join(err, readErr)
	}
	return fmt.Errorf("the node does not lend: %w; agent %q, open %v, %d invocations in flight, %v in the pool, suspended %v",
		err, state.Agent, state.Open, state.Begun, state.Available, state.Suspended)
}

// AwaitWhole waits until the pods' CPU limits are their allocations.
func AwaitWhole(ctx context.Context, pods ...Pod) error {
	for _, p := range pods {
		if _, err := AwaitCPULimit(ctx, p, time.Millisecond, wholeTimeout, p.IsWhole); err != nil {
			return fmt.Errorf("a pod is not back at its allocation: %w", err)
		}
	}
	return nil
}

const wholeTimeout = 15 * time.Second

// IsWhole reports whether a CPU limit is the pod's allocation.
func (p Pod) IsWhole(milli int64) bool { return milli == p.Allocation.CPUMilli }
