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
	What  string
	Round func(context.Context) error

	failure string // why the last round failed; empty if it did not
}

// Start begins a round after each Every, until ctx ends. It logs why rounds fail, whenever that changes, and when
// they no longer do. It implements manager.Runnable, and only the leader runs it.
func (r *Rounds) Start(ctx context.Context) error {
	ticker := r.Clock.NewTicker(r.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		err := r.Round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		failure := ""
		if err != nil {
			failure = err.Error()
		}
		switch failure {
		case r.failure:
		case "":
			r.Log.Info(r.What + " are up to date again")
		default:
			r.Log.Info(r.What+" are out of date or incomplete; trying again", "reason", failure)
		}
		r.failure = failure
	}
}

// Failing reports whether the last round failed.
func (r *Rounds) Failing() bool { return r.failure != "" }
