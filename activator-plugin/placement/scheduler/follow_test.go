package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// sourceFunc answers with what nodes lend.
type sourceFunc func() ([]pool.Changes, error)

func (f sourceFunc) ReadProfiles(context.Context, pool.Moments) ([]pool.Changes, error) { return f() }

func (f sourceFunc) ReadObservations(_ context.Context, after string, _ int) (pool.Observations, error) {
	return pool.Observations{Until: after}, nil
}

func profileOf(node string, idle, surplus, lacks int64, heard time.Time) pool.Profile {
	return pool.Profile{
		Node: node, Heard: heard, Open: true, Idle: api.Resources{CPUMilli: idle},
		Domains: map[string]pool.DomainProfile{"shop": {
			Surplus: api.Resources{CPUMilli: surplus}, Lacks: api.Resources{CPUMilli: lacks},
			Lends: []pool.Step{{Volume: api.Resources{CPUMilli: surplus}}},
		}},
	}
}

func TestFollowsAndFailsSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := newMetrics(noop.NewMeterProvider())
		if err != nil {
			t.Fatal(err)
		}
		var surplus, asked atomic.Int64
		var broken atomic.Bool
		surplus.Store(1000)
		f := &follower{clock: clock.RealClock{}, metrics: m}
		f.source = sourceFunc(func() ([]pool.Changes, error) {
			asked.Add(1)
			if broken.Load() {
				return nil, errors.New("Redis is away")
			}
			now := time.Now()
			return []pool.Changes{{Now: now, Profiles: []pool.Profile{profileOf("a", 500, surplus.Load(), 0, now)}}}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.run(ctx)
		check := func(when string, low, high int64) {
			t.Helper()
			synctest.Wait()
			p := f.now()
			if p == nil {
				t.Fatalf("%s nothing is known", when)
			}
			if got, _ := p.nodes["a"].inShop(); got < low || got > high {
				t.Errorf("%s the surplus is %d on average, want %d to %d", when, got, low, high)
			}
		}
		check("at first", 1000, 1000)
		time.Sleep(window)
		check("after a minute", 1000, 1000)
		surplus.Store(0)
		time.Sleep(window / 2)
		check("half a minute after it ended", 400, 600)
		time.Sleep(window)
		check("a minute and a half after it ended", 0, 0)

		broken.Store(true)
		time.Sleep(staleAfter + 2*askEvery)
		synctest.Wait()
		if f.now() != nil {
			t.Error("something is known while Redis is away")
		}
		before := asked.Load()
		time.Sleep(10 * mostBackoff)
		synctest.Wait()
		if more := asked.Load() - before; more < 5 || more > 15 {
			t.Errorf("in 100 seconds without Redis it is asked %d times, want about 10", more)
		}
		broken.Store(false)
		surplus.Store(700)
		time.Sleep(mostBackoff + 2*askEvery)
		check("when it is back", 700, 700)
		cancel()
		synctest.Wait()
	})
}

// A mean covers the samples of the last minute, give or take those of the slot that is leaving the window.
func TestMeansAreThoseOfTheLastMinute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m means
		now := start
		type sample struct {
			at    time.Time
			milli int64
		}
		var samples []sample
		for i, milli := range rapid.SliceOfN(rapid.Int64Range(0, 10_000), 1, 200).Draw(t, "samples") {
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Second, 3 * time.Second}).Draw(t, fmt.Sprint("after ", i)))
			m.hear(pool.Changes{Now: now, Profiles: []pool.Profile{profileOf("a", milli, milli, milli, now)}}, now)
			got := m.sample(now).nodes["a"]
			samples = append(samples, sample{now, milli})
			sum, n := int64(0), int64(0)
			oldest := (now.UnixNano()/int64(slotFor) - slots + 1) * int64(slotFor)
			for _, s := range samples {
				if s.at.UnixNano() >= oldest {
					sum, n = sum+s.milli, n+1
				}
			}
			surplus, lacks := got.inShop()
			if want := sum / n; got.idle.Load() != want || surplus != want || lacks != want {
				t.Fatalf("after %d samples it is %d, %d and %d, want %d", i+1, got.idle.Load(), surplus, lacks, want)
			}
		}
	})
}

func TestNodesThatAreNotHeardOfAreForgotten(t *testing.T) {
	var m means
	m.hear(pool.Changes{Now: start, Profiles: []pool.Profile{profileOf("a", 1, 1, 1, start), profileOf("b", 1, 1, 1, start), {Node: "c"}}}, start)
	if got := m.sample(start); len(got.nodes) != 2 {
		t.Errorf("known are %v, want a and b", got.nodes)
	}
	later := start.Add(pool.LeaseTTL + 1)
	m.hear(pool.Changes{Now: later, Profiles: []pool.Profile{profileOf("a", 1, 1, 1, later)}}, later)
	if got := m.sample(later); len(got.nodes) != 1 || got.nodes["a"].idle.Load() != 1 {
		t.Errorf("known are %v, want a", got.nodes)
	}
	if len(m.nodes) != 1 {
		t.Errorf("%d nodes are kept", len(m.nodes))
	}
}

// Pods that were placed on a node whose agent then fell silent count when it is back, while the mean begins anew.
func TestWhatWasPlacedOutlastsASilence(t *testing.T) {
	var m means
	sampled := func(after time.Duration, heard bool, idle int64) *reading {
		now := start.Add(after)
		if heard {
			m.hear(pool.Changes{Now: now, Profiles: []pool.Profile{profileOf("a", idle, 0, 0, now)}}, now)
		}
		return m.sample(now).nodes["a"]
	}
	on := sampled(0, true, 9000).placed
	on.add(placing{pod: "1", at: start, role: borrower, milli: 1000})
	for _, after := range []time.Duration{10, 11, 12} {
		if r := sampled(after*time.Second, false, 0); r != nil {
			t.Errorf("%d idle is known of a silent node", r.idle.Load())
		}
	}
	r := sampled(window/2, true, 3000)
	if got := r.idle.Load(); got != 2500 {
		t.Errorf("half a minute after a borrower of 1000 was placed %d of 3000 is left, want 2500", got)
	}
	on.remove("1")
	if got := r.idle.Load(); got != 3000 {
		t.Errorf("when it was not placed after all %d of 3000 is left", got)
	}
	on.add(placing{pod: "2", at: start.Add(window / 2), role: borrower, milli: 1000})
	sampled(2*window, false, 0)
	if len(m.nodes) != 0 {
		t.Errorf("%d nodes are kept when nothing was placed lately", len(m.nodes))
	}
}

func TestLeanings(t *testing.T) {
	var l leanings
	observed := func(configuration string, predicted, peak int64, first bool) {
		l.hear(&api.Observation{
			Ended: api.Ended{Configuration: configuration, Predicted: api.Resources{CPUMilli: predicted}}, Peak: api.Resources{CPUMilli: peak}, First: first,
		})
	}
	if _, known := l.needOf("shop/cart"); known {
		t.Error("something is known of a function that was never heard of")
	}
	observed("", 1000, 1000, false)
	observed("shop/cart", 0, 5000, true) // in a new container, the invocation's need is not known
	observed("shop/cart", 0, 0, false)
	if _, known := l.needOf("shop/cart"); known {
		t.Error("something is known of a function of which nothing was measured")
	}
	observed("shop/cart", 0, 400, false)
	observed("shop/cart", 800, 400, false) // the limit held the invocation back
	if need, _ := l.needOf("shop/cart"); need != 600 {
		t.Errorf("it needs %d, want 600", need)
	}
	for range 200 {
		observed("shop/cart", 3000, 0, false)
	}
	if need, _ := l.needOf("shop/cart"); need < 2950 || need > 3000 {
		t.Errorf("after many it needs %d, want 3000", need)
	}
	for i := range 2 * functionsMost {
		observed(fmt.Sprint("shop/", i), 100, 0, false)
		observed("shop/cart", 3000, 0, false)
	}
	if kept := len(l.newer) + len(l.older); kept > functionsMost {
		t.Errorf("%d functions are kept", kept)
	}
	if _, known := l.needOf("shop/cart"); !known {
		t.Error("one that is often heard of is forgotten")
	}
	if _, known := l.needOf("shop/0"); known {
		t.Error("one that was not heard of for long is not forgotten")
	}
}

func TestRoles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mode := rapid.SampledFrom([]api.Mode{api.ModeObserve, api.ModeLend, api.ModeFull}).Draw(t, "mode")
		need, allocation := rapid.Int64Range(1, 64_000).Draw(t, "need"), rapid.Int64Range(1, 64_000).Draw(t, "allocation")
		switch role, milli := roleOf(need, allocation, mode); {
		case role == borrower && (mode != api.ModeFull || milli <= 0 || milli != need-allocation):
			t.Fatalf("it borrows %d", milli)
		case role == donor && (mode == api.ModeObserve || milli <= 0 || milli+need > allocation):
			t.Fatalf("it lends %d", milli)
		case role == neither && milli != 0:
			t.Fatalf("it does neither, of %d", milli)
		case role == neither && mode == api.ModeFull && (need > allocation || need*5/4 < allocation):
			t.Fatal("it does neither")
		}
	})
}
