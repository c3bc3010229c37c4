package queue

import (
	"context"
	"errors"
	"time"
)

var (
	// errNoSlot is what Knative's throttler returns to an attempt when no slot is free.
	errNoSlot = context.Canceled
	// errYielded gives a slot back that another request is to have.
	errYielded = errors.New("another request goes first")
)

// ended is the end of an attempt's context.
var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// attempt takes a slot that is free, in the goroutine of the request, and does not wait
// for one. It is the context of that call, which has ended before it begins: Knative's
// throttler looks for a free slot first, and then at its context.
type attempt struct {
	context.Context
	line    *line
	metrics *metrics
	req     Request
	arrived time.Duration
	fn      func(dest string, isClusterIP bool) error

	went, yielded bool
}

func (a *attempt) Done() <-chan struct{} { return ended }

func (a *attempt) Err() error { return errNoSlot }

func (a *attempt) onSlot(dest string, isClusterIP bool) error {
	passed, first := a.line.goFirst(a.req, a.arrived)
	if !first {
		a.yielded = true
		return errYielded
	}
	// Also when what is called panics.
	a.went = true
	a.metrics.waited(a.line.shortestFirst, 0)
	if passed > 0 {
		a.metrics.overtook(a.line.overtaken, passed)
		trace(a.Context, a.req, 0, passed, 0)
	}
	return a.fn(dest, isClusterIP)
}
