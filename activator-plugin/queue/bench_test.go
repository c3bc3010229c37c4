package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
)

// BenchmarkTry measures what a Try costs beside Knative's alone: for a request that finds
// a slot, and for one of so many that wait. The function takes no time, so that the whole
// operation is the queue's.
func BenchmarkTry(b *testing.B) {
	for _, kind := range []string{"stock", "ordered"} {
		throttler := func(s stock) activatorhandler.Throttler {
			if kind == "stock" {
				return s
			}
			return newLines(b, sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))).Throttler(s)
		}
		b.Run("free/"+kind, func(b *testing.B) {
			b.ReportAllocs()
			t := throttler(newStock(10, 10))
			ctx := predictedAs(context.Background(), time.Millisecond)
			for b.Loop() {
				if err := t.Try(ctx, revID, func(string, bool) error { return nil }); err != nil {
					b.Fatal("Try() =", err)
				}
			}
		})
		for _, waiting := range []int{1, 10, 100, 1000, 10000} {
			b.Run(fmt.Sprintf("waiting=%d/%s", waiting, kind), func(b *testing.B) {
				b.ReportAllocs()
				s := newStock(1, 1<<20)
				benchWaiting(b, s, throttler(s), waiting)
			})
		}
	}
}

// benchWaiting sends b.N requests in batches. All of a batch wait before the first has a
// slot. Starting their goroutines is part of it.
func benchWaiting(b *testing.B, s stock, t activatorhandler.Throttler, waiting int) {
	for left := b.N; left > 0; left -= waiting {
		s.UpdateConcurrency(0)
		var all sync.WaitGroup
		for range min(waiting, left) {
			all.Go(func() {
				ctx := predictedAs(context.Background(), time.Duration(rand.IntN(1000))*time.Millisecond)
				if err := t.Try(ctx, revID, func(string, bool) error { return nil }); err != nil {
					b.Error("Try() =", err)
				}
			})
		}
		for s.InFlight() < min(waiting, left) {
			runtime.Gosched()
		}
		s.UpdateConcurrency(1)
		all.Wait()
	}
}
