package queue

import (
	"context"
	"errors"
)

// errPanicked is what Knative's throttler gets when the request's own goroutine panics.
var errPanicked = errors.New("the request was aborted")

// waiter is a request that waits. Its line guards all of it except the channels.
type waiter struct {
	line *line
	place
	index  int // in the line, while it waits
	state  state
	seeker *seeker

	events  chan event // from its seeker, one at a time
	replies chan error // from fn, to its seeker

	passed, passedBy int // how many it passed, how many passed it; final when it stops waiting
}

type state int

const (
	isWaiting state = iota
	isServed
	isOver // it has left, was refused, or panicked
)

// event is a slot, or the end of the seeker.
type event struct {
	dest        string
	isClusterIP bool

	ended    bool
	err      error
	panicked any
}

// result returns the error of a seeker that has ended, or panics as the seeker did.
func (e event) result() error {
	if e.panicked != nil {
		panic(e.panicked)
	}
	return e.err
}

// wait calls fn in this goroutine when the request has a slot, and returns what the
// throttler returned to the seeker. Before fn, it calls onSlot once.
func (w *waiter) wait(ctx context.Context, fn func(dest string, isClusterIP bool) error, onSlot func()) error {
	done := ctx.Done()
	for {
		select {
		case e := <-w.events:
			if e.ended {
				return e.result()
			}
			if onSlot != nil {
				onSlot()
				onSlot = nil
			}
			// A request that has a slot is not interrupted: fn watches ctx.
			done = nil
			w.serve(fn, e)
		case <-done:
			done = nil
			if s := w.line.leave(w); s != nil {
				s.cancel()
				return w.left(ctx)
			}
		}
	}
}

// left waits until the seeker no longer counts in what Knative admits, which is soon, and
// returns why the request left.
func (w *waiter) left(ctx context.Context) error {
	err := (<-w.events).result()
	if err == nil || errors.Is(err, errNobody) || errors.Is(err, context.Canceled) {
		return ctx.Err()
	}
	return err
}

// serve calls fn, and tells the seeker when fn is done. If fn panics, the slot is free
// before the panic continues, as in Knative's throttler.
func (w *waiter) serve(fn func(dest string, isClusterIP bool) error, e event) {
	err, returned := errPanicked, false
	defer func() {
		if !returned {
			w.line.abandon(w)
		}
		w.replies <- err
		if !returned {
			<-w.events
		}
	}()
	err = fn(e.dest, e.isClusterIP)
	returned = true
}
