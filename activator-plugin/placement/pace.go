package placement

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/utils/clock"
)

// Pace is how often to ask what nodes lend.
type Pace struct {
	// Every is the interval, give or take Jitter, so that parts that started together do not ask together.
	Every, Jitter time.Duration
	// MostBackoff bounds the wait when nobody answers, which doubles each time.
	MostBackoff time.Duration
	// Idle says that nobody needs the answers for now, so that the interval is idleEvery until Woken. Both may be nil.
	Idle  func() bool
	Woken <-chan struct{}
}

const idleEvery = time.Second

// Repeat asks until ctx is done, and passes each result to heard. told says whether any Redis told what it knows,
// and err has the errors of those that did not.
func (p Pace) Repeat(ctx context.Context, clk clock.Clock, ask func(context.Context) (told bool, err error), heard func(err error, took time.Duration)) {
	backoff := p.Every
	for {
		began := clk.Now()
		told, err := ask(ctx)
		if ctx.Err() != nil {
			return
		}
		took := clk.Since(began)
		heard(err, took)
		every := p.Every
		if p.Idle != nil && p.Idle() {
			every = idleEvery
		}
		delay := max(0, every-took)
		if err == nil || told {
			backoff = p.Every
		} else {
			backoff = min(2*backoff, p.MostBackoff)
			delay = backoff
		}
		timer := clk.NewTimer(delay - p.Jitter + rand.N(2*p.Jitter))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-p.Woken:
			timer.Stop()
		}
	}
}
