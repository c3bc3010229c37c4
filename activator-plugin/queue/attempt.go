package queue

import (
	"context"
	"errors"
	"time"
)

var (
	// errNoSlot is what Knative's throttler returns to an attempt when no slot is free.
	errNoSlot = context.Canceled
	// errYielded gives back a slot that another request is to have.
	errYielded = errors.New("another request goes first")
)

// ended is the Done channel of an attempt: closed from the start.
var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// attempt takes a free slot in the goroutine of the request, without waiting for one.
// It is the context of the call, which is done before the call begins: Knative's
// throttler looks for a free slot first, and only then at its context.
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
	// Set before the call, because fn may panic.
	a.went = true
	a.metrics.waited(a.line.shortestFirst, 0)
	if passed > 0 {
		a.metrics.overtook(a.line.overtaken, passed)
		trace(a.Context, a.req, 0, passed, 0)
	}
	return a.fn(dest, isClusterIP)
}
