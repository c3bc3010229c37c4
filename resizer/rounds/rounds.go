// Package rounds does something every so often for as long as a process leads.
package rounds

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Rounds are rounds of one thing. One that fails is tried again with the next.
type Rounds struct {
	Clock clock.WithTicker
	Log   logr.Logger
	Every time.Duration
	// What is to be as it should, in the plural, for the log.
	What string

	failing bool
}

// Run begins a round every so often, until ctx ends. It says when they begin to fail, and when they do not any more.
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
			r.Log.Info(r.What+" are not as they are to be; trying again", "reason", err.Error())
		case err == nil && r.failing:
			r.Log.Info(r.What + " are as they are to be again")
		}
		r.failing = err != nil
	}
}

// Failing says that the last round failed.
func (r *Rounds) Failing() bool { return r.failing }
