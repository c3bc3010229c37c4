package queue

import (
	"context"
	"errors"
)

// errPanicked is told to Knative's throttler when the request's own goroutine panics.
var errPanicked = errors.New("the request was aborted")

// waiter is a request that waits. All of it but the channels is guarded by its line.
type waiter struct {
	line *line
	place
	index  int // in the line, while it waits
	state  state
	seeker *seeker

	events  chan event // of its seeker, of which one at most is under way
	replies chan error // of what was called, to its seeker

	passed, passedBy int // how many it passed, and that passed it; final when it does not wait
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

// result of a seeker that has ended.
func (e event) result() error {
	if e.panicked != nil {
		panic(e.panicked)
	}
	return e.err
}

// wait calls fn when the request has a slot, in this goroutine, and returns what the
// throttler made of it. onSlot is called once before.
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
			// Whoever has a slot is not interrupted: fn sees to ctx.
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

// left waits until the seeker does not count any more in what Knative admits, which is
// soon, and returns why the request left.
func (w *waiter) left(ctx context.Context) error {
	err := (<-w.events).result()
	if err == nil || errors.Is(err, errNobody) || errors.Is(err, context.Canceled) {
		return ctx.Err()
	}
	return err
}

// serve calls fn, and tells the seeker when that is over. When fn panics the slot is free
// before the panic goes on, as in Knative's throttler.
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
