package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"k8s.io/utils/clock"

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
	p.fire = func() { l.strike("default/donor", false) }
	for _, pod := range []string{"default/a", "default/b", "default/c"} {
		l.ask(pod, 100)
	}
	l.sendAsks(t.Context())
	if got := p.asked.Load(); got != 1 {
		t.Errorf("%d asks were sent, want one before the strike", got)
	}
	if strikes := l.strikes.take(); len(strikes) != 1 {
		t.Errorf("strikes %v are left to be sent, want that of the donor", strikes)
	}
}
