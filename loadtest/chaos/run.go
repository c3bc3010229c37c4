package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/api"
)

const (
	// steadyAfter is how long load runs before and after a fault.
	steadyAfter = 3 * time.Second
	// hasTimeout is how long to wait for a loan, or for whatever else Libra may have in hand
	// for a fault to hit.
	hasTimeout = 20 * time.Second
	// wholeTimeout is how long to wait for everything to be at rest after the last answer or
	// the end of the fault. It is longer than allowed, to see how long it takes.
	wholeTimeout = 20 * time.Second
)

// outcome is what one trial showed.
type outcome struct {
	trial
	err         error     // why the trial failed
	began       time.Time // when the first fault began
	inHand      bool      // watcher.has held then
	sent        int
	failed      int
	excused     int
	unexcused   []request
	longest     time.Duration // that a request without an excuse took
	longestAway time.Duration
	whole       time.Duration // since the end of the last fault
	settled     time.Duration // until all were at rest at once, since the last answer
	below       time.Duration // the longest time that a pod was below its ceiling
	overweight  time.Duration // the longest time that weights added up to too much
	oomKills    int64
	violations  int
	remarks     []string // the violations, and what is still not whole
}

// trying runs one trial.
func (c *cluster) trying(ctx context.Context, s *sender, t trial) (_ outcome, err error) {
	o := outcome{trial: t}
	if t.crowded() {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			err = errors.Join(err, c.disperse(ctx))
		}()
		if err := c.crowd(ctx); err != nil {
			return o, err
		}
	}
	var targets []target
	for _, f := range t.faults {
		hit, err := c.aim(ctx, f, t)
		if err != nil {
			return o, err
		}
		targets = append(targets, hit)
	}
	if err := c.awaitFunctions(ctx); err != nil {
		return o, err
	}
	if err := s.warm(ctx, t.seed); err != nil {
		return o, err
	}
	w, err := c.watchSettled(ctx, t.source)
	if err != nil {
		return o, fmt.Errorf("before the fault: %w", err)
	}
	defer w.stop()

	l := s.start(ctx, t.seed)
	w.follow(l)
	excuses, end, err := c.breakUnder(ctx, w, l, &o, targets)
	if err == nil {
		err = rig.Pause(ctx, steadyAfter)
	}
	requests := l.stop()
	if err != nil {
		return o, err
	}
	answered := time.Now()
	since, err := w.awaitSettled(ctx, answered.Add(wholeTimeout))
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	if err != nil {
		o.remarks = append(o.remarks, err.Error())
	}
	w.stop()

	o.sent = len(requests)
	o.failed, o.excused, o.unexcused = tally(requests, excuses)
	o.longest = longest(requests, excuses)
	o.longestAway, o.whole, o.settled = w.tracker.longestAway(), w.tracker.wholeAfter(end), since.Sub(answered)
	o.below, o.overweight = w.tracker.below, w.tracker.shares.longest()
	o.oomKills = w.oomKills()
	var what []string
	o.violations, what = w.violations(o.began)
	o.remarks = append(o.remarks, what...)
	return o, nil
}

// watchSettled waits until everything is at rest, and then starts a new watch: what happened
// before is no fault's doing.
func (c *cluster) watchSettled(ctx context.Context, source api.Source) (*watcher, error) {
	before, err := c.watch(ctx, source)
	if err != nil {
		return nil, err
	}
	_, err = before.awaitSettled(ctx, time.Now().Add(wholeTimeout))
	before.stop()
	if err != nil {
		return nil, err
	}
	return c.watch(ctx, source)
}

// breakUnder makes the faults of a trial under load, and returns when the last is over. end
// is the time from which everything should become whole.
func (c *cluster) breakUnder(ctx context.Context, w *watcher, l *load, o *outcome, targets []target) (excuses []excuse, end time.Time, err error) {
	if err := rig.Pause(ctx, steadyAfter+o.lead); err != nil {
		return nil, end, err
	}
	if !o.stock {
		o.inHand = w.awaitHas(ctx, o.trial)
	}
	o.began = time.Now()
	var mu sync.Mutex
	var striking sync.WaitGroup
	for _, t := range targets {
		striking.Go(func() {
			if rig.Pause(ctx, t.after) != nil {
				return
			}
			w.begin(t.fault)
			t.back = sync.OnceFunc(func() { w.over(t.fault) })
			s, strikeErr := c.strike(ctx, t, l)
			t.back()
			due := s.due
			if due.IsZero() {
				due = time.Now()
			}
			mu.Lock()
			defer mu.Unlock()
			excuses = append(excuses, s.excuses...)
			if due.After(end) {
				end = due
			}
			if strikeErr != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", t.name(), strikeErr))
			}
		})
	}
	striking.Wait()
	return excuses, end, errors.Join(err, ctx.Err())
}

// runner runs all trials.
type runner struct {
	*cluster
	sender   *sender
	swap     func(ctx context.Context, libra bool) error
	deadline time.Time
}

// all runs the trials with Libra, then those with stock. However it ends, Libra's activator
// is in place again, and the source is what it was.
func (r *runner) all(ctx context.Context, libra, stock []trial) (outcomes []outcome, err error) {
	there, err := r.hasLibra(ctx)
	if err != nil {
		return nil, err
	}
	if !there { // a killed run left the stock one in place
		r.Say("replacing the stock activator with Libra's")
		if err := r.swap(ctx, true); err != nil {
			return nil, err
		}
	}
	restore, err := r.holdSource(ctx)
	if restore != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			err = errors.Join(err, restore(ctx))
		}()
	}
	if err != nil {
		return nil, err
	}
	for _, source := range allSources {
		of := slices.DeleteFunc(slices.Clone(libra), func(t trial) bool { return t.source != source })
		if len(of) == 0 {
			continue
		}
		r.Say("source %s, faults: %d", source, len(of))
		if err := r.setSource(ctx, source); err != nil {
			return outcomes, err
		}
		more, err := r.some(ctx, of)
		if outcomes = append(outcomes, more...); err != nil {
			return outcomes, err
		}
	}
	if len(stock) == 0 {
		return outcomes, nil
	}
	r.Say("replacing Libra's activator with the stock one")
	defer func() {
		r.Say("putting Libra's activator back")
		err = errors.Join(err, r.swap(context.WithoutCancel(ctx), true))
	}()
	// Under owners, Libra changes nothing in functions while nothing is on loan.
	if err := errors.Join(r.setSource(ctx, api.SourceOwners), r.swap(ctx, false)); err != nil {
		return outcomes, err
	}
	more, err := r.some(ctx, stock)
	return append(outcomes, more...), err
}

func (r *runner) some(ctx context.Context, trials []trial) ([]outcome, error) {
	var outcomes []outcome
	for i, t := range trials {
		on := t.on()
		if time.Now().After(r.deadline) {
			r.Say("no time left for %s on %s", t.name, on)
			outcomes = append(outcomes, outcome{trial: t, err: errNoTime})
			continue
		}
		r.Say("%d of %d on %s, %s: %s", i+1, len(trials), on, t.name, t.what())
		o, err := r.trying(ctx, r.sender, t)
		if ctx.Err() != nil {
			return outcomes, errors.Join(ctx.Err(), err)
		}
		if o.err = err; err != nil {
			r.Say("  no result: %v", err)
		} else {
			r.tell(o)
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// tell prints a short report of a trial.
func (r *runner) tell(o outcome) {
	r.Say("  %d requests, %d failed, %d of these excused; a pod or weight was away uncovered for at most %.2f s; pods were whole %.2f s after the end of the fault, and everything was at rest %.2f s after the last answer",
		o.sent, o.failed, o.excused, o.longestAway.Seconds(), o.whole.Seconds(), o.settled.Seconds())
	for _, remark := range o.remarks {
		r.Say("  %s", remark)
	}
	for i, f := range o.unexcused {
		if i == mostTold {
			r.Say("  and %d more failed", len(o.unexcused)-i)
			break
		}
		r.Say("  failed: %s, sent %+.1f s from the beginning of the fault, after %.1f s: %s",
			f.function, f.sent.Sub(o.began).Seconds(), f.ended.Sub(f.sent).Seconds(), f.err)
	}
}

// mostTold keeps the report of a trial that went wrong readable.
const mostTold = 5

var errNoTime = errors.New("no time was left")
