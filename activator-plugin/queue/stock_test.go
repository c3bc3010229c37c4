package queue

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	knativequeue "knative.dev/serving/pkg/queue"
)

var revID = types.NamespacedName{Namespace: "ns", Name: "rev"}

// stock is Knative's throttler for one revision with one pod: its breaker.
type stock struct{ *knativequeue.Breaker }

func newStock(concurrency, depth int) stock {
	return stock{knativequeue.NewBreaker(knativequeue.BreakerParams{
		QueueDepth: depth, MaxConcurrency: concurrency, InitialCapacity: concurrency,
	})}
}

func (s stock) Try(ctx context.Context, _ types.NamespacedName, fn func(string, bool) error) error {
	var result error
	if err := s.Maybe(ctx, func() { result = fn("10.0.0.1:8012", false) }); err != nil {
		return err
	}
	return result
}

type requestKey struct{}

// as returns the context of a request of which req is known.
func as(ctx context.Context, req Request) context.Context {
	return context.WithValue(ctx, requestKey{}, req)
}

// predictedAs returns the context of a request that is ordered.
func predictedAs(ctx context.Context, d time.Duration) context.Context {
	return as(ctx, Request{Order: ShortestFirst, Predicted: d})
}

func newLines(t testing.TB, mp metric.MeterProvider) *Lines {
	t.Helper()
	l, err := New(Options{
		Clock:         clock.RealClock{},
		MeterProvider: mp,
		Request: func(ctx context.Context, _ types.NamespacedName) Request {
			req, _ := ctx.Value(requestKey{}).(Request)
			return req
		},
	})
	if err != nil {
		t.Fatal("New() =", err)
	}
	return l
}

func ordered(t testing.TB, next activatorhandler.Throttler) activatorhandler.Throttler {
	return newLines(t, noop.NewMeterProvider()).Throttler(next)
}
