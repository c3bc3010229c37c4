package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"k8s.io/utils/clock"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/pool"
)

// countingPool counts how often it is read.
type countingPool struct {
	noPool
	reads atomic.Int64
}

func (p *countingPool) Read(context.Context, string) (pool.State, error) {
	p.reads.Add(1)
	return pool.State{}, nil
}

// However often the stream wakes the agent, it reads the state at a bounded rate, and
// once more after the last wakeup.
func TestReadingsAreBounded(t *testing.T) {
	m, err := newMetrics(sdkmetric.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	p := &countingPool{}
	l := newLink(clock.RealClock{}, p, node, m)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { l.run(ctx); close(done) }()
	const span = 100 * time.Millisecond
	begun := time.Now()
	for time.Since(begun) < span || p.reads.Load() == 0 {
		signal(l.woken)
		time.Sleep(50 * time.Microsecond)
	}
	most := int64(time.Since(begun)/readGap) + 2
	if got := p.reads.Load(); got == 0 || got > most {
		t.Errorf("the state was read %d times in %v, want 1 to %d", got, span, most)
	}
	before := p.reads.Load()
	signal(l.woken)
	eventually(t, "a reading after the last waking", func() bool { return p.reads.Load() > before })
	cancel()
	<-done
}

// However long the pool is away, the agent tells once that it is, and once that it is back.
func TestAnOutageIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := newMetrics(sdkmetric.NewMeterProvider())
		if err != nil {
			t.Fatal(err)
		}
		var told []string
		log := funcr.New(func(_, line string) { told = append(told, line) }, funcr.Options{})
		ctx, cancel := context.WithCancel(logf.IntoContext(t.Context(), log))
		p := &awayPool{}
		l := newLink(clock.RealClock{}, p, node, m)
		done := make(chan struct{})
		go func() { l.run(ctx); close(done) }()
		wait := func(span time.Duration) {
			for range span / beatEvery {
				latest(l.beats, pool.Heartbeat{})
				time.Sleep(beatEvery)
				synctest.Wait()
			}
		}
		for outages := 1; outages <= 2; outages++ {
			p.away.Store(true)
			wait(time.Minute)
			p.away.Store(false)
			wait(time.Minute)
			// That the state cannot be read, that a heartbeat cannot be sent, and the end.
			if len(told) != 3*outages {
				t.Errorf("after %d outages of a minute, told %d times, want 3 of each:\n%s", outages, len(told), strings.Join(told, "\n"))
			}
		}
		cancel()
		<-done
	})
}

// awayPool answers nothing while it is away.
type awayPool struct {
	noPool
	away atomic.Bool
}

func (p *awayPool) err() error {
	if p.away.Load() {
		return errors.New("away")
	}
	return nil
}

func (p *awayPool) Read(context.Context, string) (pool.State, error) { return pool.State{}, p.err() }

func (p *awayPool) Heartbeat(context.Context, string, pool.Heartbeat) (bool, error) {
	return true, p.err()
}

// strikingPool fires the safeguard of a donor while the first of many asks is under way.
type strikingPool struct {
	noPool
	asked atomic.Int64
	fire  func()
}

func (p *strikingPool) Ask(context.Context, string, string, int64) error {
	p.asked.Add(1)
	p.fire()
	return nil
}

func TestNoStrikeWaitsForAsks(t *testing.T) {
	m, err := newMetrics(sdkmetric.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	p := &strikingPool{}
	l := newLink(clock.RealClock{}, p, node, m)
	p.fire = func() { l.strikes.put("default/donor", false) }
	for _, pod := range []string{"default/a", "default/b", "default/c"} {
		l.asks.put(pod, 100)
	}
	l.sendAsks(t.Context())
	if got := p.asked.Load(); got != 1 {
		t.Errorf("%d asks were sent, want one before the strike", got)
	}
	if strikes := l.strikes.take(); len(strikes) != 1 {
		t.Errorf("strikes %v are left to be sent, want that of the donor", strikes)
	}
}

// lostPool answers no safeguard.
type lostPool struct {
	noPool
	called    int
	meanwhile func()
}

func (p *lostPool) Safeguard(context.Context, string, string, bool) (int64, error) {
	p.called++
	if p.meanwhile != nil {
		p.meanwhile()
	}
	return 0, errors.New("away")
}

// Calls that were not made did not fail, and are made later.
func TestStrikesStayPending(t *testing.T) {
	told := sdkmetric.NewManualReader()
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(told)))
	if err != nil {
		t.Fatal(err)
	}
	p := &lostPool{}
	l := newLink(clock.RealClock{}, p, node, m)
	want := map[string]bool{"default/a": true, "default/b": false, "default/c": true}
	for pod, idle := range want {
		l.strikes.put(pod, idle)
	}
	if err := l.revoke(t.Context()); err == nil || p.called != 1 {
		t.Errorf("%d calls, %v; want one, and its error", p.called, err)
	}
	if n := (&rig{fatal: t, ctx: t.Context(), metrics: told}).counted("libra.agent.redis.errors", "safeguard"); n != 1 {
		t.Errorf("%d failed calls are counted, want 1", n)
	}
	if diff := cmp.Diff(want, l.strikes.take()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
}

// A strike that could not be sent is not put back over a later one: the pool would take it for one against a pod that is
// idle no more.
func TestAStrikeThatFailsLeavesALaterOne(t *testing.T) {
	m, err := newMetrics(sdkmetric.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	p := &lostPool{}
	l := newLink(clock.RealClock{}, p, node, m)
	l.strikes.put("default/a", true)
	p.meanwhile = func() { l.strikes.put("default/a", false) }
	if err := l.revoke(t.Context()); err == nil {
		t.Error("no error")
	}
	if diff := cmp.Diff(map[string]bool{"default/a": false}, l.strikes.take()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
}
