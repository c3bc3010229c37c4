// Package rounds runs a task at regular intervals for as long as a process leads.
package rounds

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Rounds runs one task at regular intervals. A round that fails is tried again with the next.
type Rounds struct {
	Clock clock.WithTicker
	Log   logr.Logger
	Every time.Duration
	// What names, in the plural and for the log, the things that a round puts right.
	What string

	failing bool
}

// Run begins a round after each Every, until ctx ends. It logs when rounds begin to fail, and when they no
// longer do.
func (r *Rounds) Run(ctx context.Context, round func(context.Context) error) {
	ticker := r.Clock.NewTicker(r.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		err := round(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !r.failing:
			r.Log.Info(r.What+" are out of date or incomplete; trying again", "reason", err.Error())
		case err == nil && r.failing:
			r.Log.Info(r.What + " are up to date again")
		}
		r.failing = err != nil
	}
}

// Failing reports whether the last round failed.
func (r *Rounds) Failing() bool { return r.failing }
