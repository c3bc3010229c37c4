// Package queue decides which request goes first when requests of a revision wait in the
// activator for a free slot: the one that is predicted to be the shortest. The longer a
// request has waited, the sooner it goes.
//
// Knative still decides which requests are admitted, how many wait, and which are
// refused. For each request that waits here, one call waits in Knative's throttler. When
// one of these calls gets a slot, the slot goes to the request that is to go first.
package queue

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
)

// Order is the order in which the waiting requests of a revision go.
type Order int

const (
	// Stock is Knative's queue as it is.
	Stock Order = iota
	// FIFO is Knative's queue, with the waiting times measured.
	FIFO
	// ShortestFirst lets the request that is predicted to be the shortest go first.
	ShortestFirst
)

// Request is what is known of a request when it comes.
type Request struct {
	Order Order
	// Predicted is how much CPU time it will take or, where that is not known, how long; 0 when neither is known.
	Predicted time.Duration
	// Timeout is how long it may take in all, waiting included; 0 without a bound.
	Timeout time.Duration
}

// Options are the collaborators of Lines.
type Options struct {
	Clock         clock.PassiveClock
	MeterProvider metric.MeterProvider
	// Request returns what is known of the request in ctx. It must not block.
	Request func(ctx context.Context, revision types.NamespacedName) Request
}

// Throttler returns the throttler that goes before next, Knative's throttler. A request
// whose order is Stock goes straight to next.
func (l *Lines) Throttler(next activatorhandler.Throttler) activatorhandler.Throttler {
	return &throttler{lines: l, next: next}
}

type throttler struct {
	lines *Lines
	next  activatorhandler.Throttler
}

// Try returns what next returns: the error of fn, or why there was no slot.
func (t *throttler) Try(ctx context.Context, revID types.NamespacedName, fn func(dest string, isClusterIP bool) error) error {
	req := t.lines.request(ctx, revID)
	switch req.Order {
	case ShortestFirst:
		return t.shortestFirst(ctx, revID, req, fn)
	case FIFO:
		arrived, went := t.lines.now(), false
		waited := func() { t.lines.metrics.waited(t.lines.of(revID, arrived).fifo, t.lines.now()-arrived) }
		err := t.next.Try(ctx, revID, func(dest string, isClusterIP bool) error {
			went = true
			waited()
			return fn(dest, isClusterIP)
		})
		if !went && ctx.Err() != nil {
			waited() // in vain
		}
		return err
	default:
		return t.next.Try(ctx, revID, fn)
	}
}

func (t *throttler) shortestFirst(ctx context.Context, revID types.NamespacedName, req Request, fn func(dest string, isClusterIP bool) error) error {
	arrived := t.lines.now()
	line := t.lines.of(revID, arrived)

	// Most requests find a free slot and need no seeker.
	try := attempt{Context: ctx, line: line, metrics: t.lines.metrics, req: req, arrived: arrived, fn: fn}
	err := t.next.Try(&try, revID, try.onSlot)
	if try.went || !try.yielded && !errors.Is(err, errNoSlot) {
		return err
	}

	// The seeker, with its context, may go to another request and outlive this one.
	seekCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w, s := line.join(req, arrived, cancel)
	go s.seek(seekCtx, t.next, revID)
	went := false
	waited := func() time.Duration {
		waited := t.lines.now() - arrived
		t.lines.metrics.waited(line.shortestFirst, waited)
		t.lines.metrics.overtook(line.overtaken, w.passed)
		return waited
	}
	err = w.wait(ctx, fn, func() {
		went = true
		trace(ctx, req, waited(), w.passed, w.passedBy)
	})
	if !went && ctx.Err() != nil {
		waited() // in vain
	}
	return err
}
