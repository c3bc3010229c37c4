package invocation

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
)

// fault is what happens to one call to the pool.
type fault struct {
	delay time.Duration
	// A call that is lost has no effect; one that is unanswered has. One that is late is
	// given up, and has its effect after the delay.
	lost, unanswered, late bool
}

var errFault = errors.New("the connection broke")

// faulty is a pool whose calls meet the faults, one each; calls after the last fault meet
// none.
type faulty struct {
	pool.Pool

	mu     sync.Mutex
	faults []fault
	late   sync.WaitGroup
}

func (f *faulty) next() (next fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.faults) > 0 {
		next, f.faults = f.faults[0], f.faults[1:]
	}
	return next
}

func meet(ctx context.Context, next fault, call func() error) error {
	if next.lost {
		return errFault
	}
	// A call may have had its effect even if its deadline cuts it off.
	err := call()
	if next.delay > 0 {
		select {
		case <-time.After(next.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if next.unanswered {
		return errFault
	}
	return err
}

func (f *faulty) Begin(ctx context.Context, node string, inv pool.Invocation) (borrowed api.Resources, err error) {
	next := f.next()
	if next.late {
		f.late.Go(func() {
			time.Sleep(min(next.delay, pool.LeaseTTL-time.Second)) // for so long an End stands
			_, _ = f.Pool.Begin(context.WithoutCancel(ctx), node, inv)
		})
		return borrowed, errFault
	}
	err = meet(ctx, next, func() error {
		var err error
		borrowed, err = f.Pool.Begin(ctx, node, inv)
		return err
	})
	return borrowed, err
}

func (f *faulty) BeginAfter(ctx context.Context, node string, ended []pool.Ending, inv pool.Invocation) (outcomes []pool.Outcome, borrowed api.Resources, err error) {
	next := f.next()
	if next.late {
		f.late.Go(func() {
			time.Sleep(min(next.delay, pool.LeaseTTL-time.Second))
			_, _, _ = f.Pool.BeginAfter(context.WithoutCancel(ctx), node, ended, inv)
		})
		return nil, borrowed, errFault
	}
	err = meet(ctx, next, func() error {
		var err error
		outcomes, borrowed, err = f.Pool.BeginAfter(ctx, node, ended, inv)
		return err
	})
	return outcomes, borrowed, err
}

func (f *faulty) End(ctx context.Context, node string, e pool.Ending) (outcome pool.Outcome, err error) {
	err = meet(ctx, f.next(), func() error {
		var err error
		outcome, err = f.Pool.End(ctx, node, e)
		return err
	})
	if err != nil {
		outcome = pool.Outcome{}
	}
	return outcome, err
}

func (f *faulty) Renew(ctx context.Context, node, owner string) error {
	return meet(ctx, f.next(), func() error { return f.Pool.Renew(ctx, node, owner) })
}

type planned struct {
	pod, node            string
	starts, runs         time.Duration
	predicted            time.Duration
	lends, borrows, dies bool
	ranked               bool
	concurrency          int
}

// Whatever the pool does, and in whatever order invocations end, each that was reported to
// the pool is ended by one answered End, and leaves nothing behind.
func TestLifecycleProperties(t *testing.T) {
	durations := rapid.SampledFrom([]time.Duration{0, time.Millisecond, 4 * time.Millisecond, 30 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second, 8 * time.Second})
	invocations := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) planned {
		return planned{
			pod:       rapid.SampledFrom([]string{"ns/a", "ns/b", "ns/c"}).Draw(t, "pod"),
			node:      rapid.SampledFrom([]string{"node-a", "node-b"}).Draw(t, "node"),
			starts:    durations.Draw(t, "starts"),
			runs:      durations.Draw(t, "runs"),
			predicted: durations.Draw(t, "predicted"),
			lends:     rapid.Bool().Draw(t, "lends"),
			borrows:   rapid.Bool().Draw(t, "borrows"),
			dies:      rapid.Bool().Draw(t, "dies"),
			ranked:    rapid.Bool().Draw(t, "ranked"),

			concurrency: rapid.IntRange(1, 3).Draw(t, "concurrency"),
		}
	}), 1, 20)
	faults := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fault {
		return fault{
			delay:      durations.Draw(t, "delay"),
			lost:       rapid.Bool().Draw(t, "lost"),
			unanswered: rapid.Bool().Draw(t, "unanswered"),
			late:       rapid.Bool().Draw(t, "late"),
		}
	}), 0, 60)

	rapid.Check(t, func(rt *rapid.T) {
		plan, faults := invocations.Draw(rt, "invocations"), faults.Draw(rt, "faults")
		var wrong []string
		// The bubble ends when no goroutine is left in it, and fails when one stays.
		synctest.Test(t, func(*testing.T) { wrong = live(plan, faults) })
		for _, w := range wrong {
			rt.Error(w)
		}
	})
}

// live runs the plan and returns what is wrong after it.
func live(plan []planned, faults []fault) (wrong []string) {
	m, err := newMetrics(noop.NewMeterProvider())
	if err != nil {
		return []string{err.Error()}
	}
	memory := pooltest.NewMemory(clock.RealClock{})
	faulty := &faulty{Pool: memory, faults: faults}
	book := newLedger(faulty)
	l := newLifecycle(book, "owner", clock.RealClock{}, zap.NewNop().Sugar(), m)
	ctx, cancel := context.WithCancel(context.Background())
	var renewing, requests sync.WaitGroup
	renewing.Go(func() { l.renewLeases(ctx) })
	for i, p := range plan {
		requests.Go(func() {
			time.Sleep(p.starts)
			inv := invocationIn(p.pod, string(rune('a'+i)))
			inv.Duration, inv.Allocation = p.predicted, res(1000, 512)
			inv.Concurrency, inv.Need, inv.Ranked = p.concurrency, res(200, 64), p.ranked
			if p.lends {
				inv.Surplus = res(400, 128)
			} else if p.borrows {
				inv.Want = res(300, 64)
			}
			f := l.start(revID, p.node, inv)
			defer func() { f.finish(200) }()
			time.Sleep(p.runs)
			if p.dies {
				runtime.Goexit()
			}
		})
	}
	requests.Wait()
	l.running.Wait()
	cancel()
	renewing.Wait()
	faulty.late.Wait()
	wrong = book.mistakes("node-a", "node-b")
	if l.inFlight+len(l.nodes)+len(l.revisions)+len(l.crowds)+len(l.ending)+len(l.lingering) != 0 {
		wrong = append(wrong, "the lifecycle has not forgotten all")
	}
	return wrong
}
