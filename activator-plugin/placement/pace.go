package placement

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/utils/clock"
)

// Pace is how often what nodes lend is asked for.
type Pace struct {
	// Every is how often, give or take Jitter, so that those that have started together do not ask together.
	Every, Jitter time.Duration
	// MostBackoff bounds what is waited where nobody tells anything: twice as long each time.
	MostBackoff time.Duration
}

// Repeat asks until ctx is done, and has each answer heard: whether any Redis told what it knows, and the error of
// those that did not.
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
		delay := max(0, p.Every-took)
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
		}
	}
}
