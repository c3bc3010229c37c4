package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	nodeName   = "box"
	owner      = "node-test"
	renewEvery = time.Second

	lentMilli = 200
	// needsMiB is 1.5 times the memory that a function is owed. borrowedMemory is what it borrows.
	needsMiB       = 144
	borrowedMemory = 96 * mebibyte
)

// borrowing returns the invocations in flight that get more than they are owed: a borrower of CPU which also
// needs more memory than its limit, and two that compete for the node's CPU, of which one is predicted to be
// quick.
func borrowing(n int) []pool.Invocation {
	short, quick, slow := invocation(borrower, n), invocation(first, n), invocation(second, n)
	short.Want = api.Resources{CPUMilli: lentMilli, MemoryBytes: borrowedMemory}
	quick.Ranked, quick.CPUTime = true, 20*time.Millisecond
	slow.Ranked, slow.CPUTime = true, time.Hour
	return []pool.Invocation{short, quick, slow}
}

// lending returns the invocation that lends the borrower CPU.
func lending(n int) pool.Invocation {
	inv := invocation(donor, n)
	inv.Surplus = api.Resources{CPUMilli: lentMilli}
	return inv
}

func invocation(f function, n int) pool.Invocation {
	return pool.Invocation{
		// Each has a function of its own: on an emulated machine a probe may need what is
		// lent, and then the safeguard suspends the function's donors.
		ID: fmt.Sprintf("%s-%d", f.name, n), Function: fmt.Sprintf("%s-%d", f.key(), n), Pod: f.key(), Domain: f.namespace, Owner: owner,
		Size: api.UnknownSize, Allocation: f.owed, Duration: 10 * time.Minute,
	}
}

// load has invocations in flight, as an activator would, and sends requests that use what is
// borrowed, one at a time to each function.
type load struct {
	pools  *pool.Redis
	begun  []pool.Invocation
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu       sync.Mutex
	answered int
	failed   []error
}

// startLoad begins the invocations that borrow, and then the requests that use what these get.
func (g *guest) startLoad(ctx context.Context) (*load, error) {
	g.begun++
	l := &load{pools: g.pools}
	var going context.Context
	going, l.cancel = context.WithCancel(ctx)
	l.renew(going)
	err := l.begin(going, borrowing(g.begun)...)
	if err == nil {
		// Another test measures how soon a memory limit rises.
		err = g.eventually(going, "limits above what is owed", forceLimit, func(context.Context) error { return g.raised() })
	}
	if err != nil {
		return nil, errors.Join(err, l.stop(context.WithoutCancel(ctx)))
	}
	l.request(going, g)
	return l, nil
}

// lend has the donor lend until all loans are in force. It lends last, because a loan that nobody uses goes
// back at once. A donor that has taken back what it lends does not lend it again: then lend begins another
// of its invocations.
func (g *guest) lend(ctx context.Context, l *load) error {
	for began := time.Now(); ; {
		g.begun++
		lends := lending(g.begun)
		err := l.begin(ctx, lends)
		if err == nil {
			err = g.eventually(ctx, "loans in force", attemptLimit, func(context.Context) error { return g.inForce() })
		}
		if err == nil || ctx.Err() != nil || time.Since(began) > forceLimit {
			return err
		}
		g.say("the donor begins again: %v", err)
		if err := l.end(ctx, lends); err != nil {
			return err
		}
	}
}

// begin begins invocations.
func (l *load) begin(ctx context.Context, all ...pool.Invocation) error {
	for _, inv := range all {
		l.begun = append(l.begun, inv)
		if err := retry(ctx, time.Minute, func(ctx context.Context) error {
			_, err := l.pools.Begin(ctx, nodeName, inv)
			return err
		}); err != nil {
			return fmt.Errorf("begin %s: %w", inv.ID, err)
		}
	}
	return nil
}

// end ends an invocation. It does nothing if that has ended.
func (l *load) end(ctx context.Context, inv pool.Invocation) error {
	if err := retry(ctx, time.Minute, func(ctx context.Context) error {
		_, err := l.pools.End(ctx, nodeName, pool.Ending{ID: inv.ID, Late: true})
		return err
	}); err != nil {
		return fmt.Errorf("end %s: %w", inv.ID, err)
	}
	return nil
}

// renew renews the invocations until the context ends.
func (l *load) renew(ctx context.Context) {
	l.done.Go(func() {
		tick := time.NewTicker(renewEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				// A lease that expires shows as loans that are not in force.
				_ = l.pools.Renew(ctx, nodeName, owner)
			}
		}
	})
}

// request sends requests to the functions, one at a time to each, until the load is stopped.
func (l *load) request(ctx context.Context, g *guest) {
	for f, mib := range map[function]int{borrower: needsMiB, second: 8} {
		ip := g.running[f.key()].ip
		l.done.Go(func() {
			for ctx.Err() == nil {
				// A request that has begun runs to its end.
				err := call(context.WithoutCancel(ctx), ip, mib, 4*time.Second)
				l.note(f, err)
				if err != nil {
					backOff(ctx, time.Second)
				}
			}
		})
	}
}

// note records the outcome of a request.
func (l *load) note(f function, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.answered++
		return
	}
	l.failed = append(l.failed, fmt.Errorf("%s: %w", f.key(), err))
}

// stop waits for the requests in flight, and then ends the invocations.
func (l *load) stop(ctx context.Context) error {
	l.cancel()
	l.done.Wait()
	for _, inv := range l.begun {
		if err := l.end(ctx, inv); err != nil {
			return err
		}
	}
	return nil
}

// retry calls do until it succeeds, for as long as limit.
func retry(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, 10*time.Second)
		err := do(attempt)
		done()
		if err == nil {
			return nil
		}
		if !backOff(ctx, 250*time.Millisecond) {
			return err
		}
	}
}

// backOff waits, and reports whether the context is still live.
func backOff(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
