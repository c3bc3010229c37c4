// Package backoff says how long the resizer's parts wait before they try again.
package backoff

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Min is the first wait to use for failures that are most likely over soon.
const Min = 100 * time.Millisecond

// Delay is how long to wait after each of several failures in a row: Min after the
// first, and twice as long each time, up to Max.
type Delay struct {
	Min, Max time.Duration
	current  time.Duration
}

// Next returns how long to wait after another failure.
func (d *Delay) Next() time.Duration {
	d.current = min(max(2*d.current, d.Min), d.Max)
	return d.current
}

// Failing reports whether there was a failure since the last Reset.
func (d *Delay) Failing() bool { return d.current > 0 }

// Reset starts over after a success.
func (d *Delay) Reset() { d.current = 0 }

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, clk clock.Clock, d time.Duration) {
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}
