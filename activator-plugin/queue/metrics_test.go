package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/types"
)

// measured is what the metrics say: the seconds waited, by order, and how many requests
// were overtaken.
func measured(t *testing.T, reader sdkmetric.Reader) (waited map[string][2]float64, overtaken int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal("Collect() =", err)
	}
	waited = map[string][2]float64{}
	checkRevision := func(set attribute.Set) {
		for key, want := range map[attribute.Key]string{"k8s.namespace.name": "ns", "kn.revision.name": "rev"} {
			if got, _ := set.Value(key); got.AsString() != want {
				t.Errorf("attribute %s is %q, want %q", key, got.AsString(), want)
			}
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					checkRevision(p.Attributes)
					order, _ := p.Attributes.Value(orderKey)
					waited[m.Name+" "+order.AsString()] = [2]float64{float64(p.Count), p.Sum}
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					checkRevision(p.Attributes)
					overtaken += p.Value
				}
			}
		}
	}
	return waited, overtaken
}

// Otherwise an order in which some wait until their clients leave would seem to have the shortest waits.
func TestWaitsInVainCount(t *testing.T) {
	for _, order := range []Order{ShortestFirst, FIFO} {
		synctest.Test(t, func(t *testing.T) {
			reader := sdkmetric.NewManualReader()
			throttler := newLines(t, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))).Throttler(newStock(1, 10))
			ctx := as(context.Background(), Request{Order: order, Predicted: time.Second})
			served := make(chan error)
			go func() {
				served <- throttler.Try(ctx, revID, func(string, bool) error {
					time.Sleep(3 * time.Second)
					return nil
				})
			}()
			synctest.Wait()
			leaves, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if err := throttler.Try(leaves, revID, func(string, bool) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Try() = %v, want that its time ran out", err)
			}
			if err := <-served; err != nil {
				t.Error("Try() =", err)
			}
			var data metricdata.ResourceMetrics
			if err := reader.Collect(context.Background(), &data); err != nil {
				t.Fatal(err)
			}
			for _, m := range data.ScopeMetrics[0].Metrics {
				if m.Name == "libra.queue.wait" {
					if p := m.Data.(metricdata.Histogram[float64]).DataPoints[0]; p.Count != 2 || p.Sum != 2 {
						t.Errorf("%d requests waited for %v s in all, want 2, one of which waited for 2 s in vain", p.Count, p.Sum)
					}
				}
			}
		})
	}
}

// The metrics, and the span in which a request waits, say what it gains and loses by the
// order.
func TestMetricsAndTraces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		spans := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
		throttler := newLines(t, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))).Throttler(newStock(1, 10))

		var all sync.WaitGroup
		send := func(name string, req Request) {
			all.Go(func() {
				ctx, span := tracer.Start(as(context.Background(), req), name)
				defer span.End()
				if err := throttler.Try(ctx, revID, func(string, bool) error {
					span.End()
					time.Sleep(3 * time.Second)
					return nil
				}); err != nil {
					t.Error("Try() =", err)
				}
			})
			time.Sleep(time.Second)
		}
		send("first", Request{Order: ShortestFirst})                                     // 0 to 3 s
		send("long", Request{Order: ShortestFirst, Predicted: 9 * time.Second})          // 1 to 9 s
		send("short", Request{Order: ShortestFirst, Predicted: 1500 * time.Microsecond}) // 2 to 3 s
		send("medium", Request{Order: ShortestFirst, Predicted: time.Second})            // 3 to 6 s
		send("fifo", Request{Order: FIFO, Predicted: time.Second})
		all.Wait()

		got := map[string]map[string]any{}
		for _, span := range spans.Ended() {
			if len(span.Attributes()) > 0 {
				got[span.Name()] = map[string]any{}
			}
			for _, kv := range span.Attributes() {
				got[span.Name()][string(kv.Key)] = kv.Value.AsInterface()
			}
		}
		delete(got, "fifo")
		if diff := cmp.Diff(map[string]map[string]any{
			"long":   attributes(8000, 9000, 0, 2),
			"short":  attributes(1000, 1.5, 1, 0),
			"medium": attributes(3000, 1000, 1, 0),
		}, got); diff != "" {
			t.Error("Spans (-want, +got):\n" + diff)
		}

		waited, overtaken := measured(t, reader)
		if got := waited["libra.queue.wait shortest_first"]; got != [2]float64{4, 12} {
			t.Errorf("libra.queue.wait of those in order: %v, want 4 requests of 12 s", got)
		}
		if got := waited["libra.queue.wait fifo"]; got[0] != 1 || got[1] < 2 {
			t.Errorf("libra.queue.wait of the one in FIFO order: %v, want 1 request of some seconds", got)
		}
		if overtaken != 2 {
			t.Errorf("libra.queue.overtaken = %d, want 2", overtaken)
		}
	})
}

func attributes(waited, predicted float64, passed, passedBy int64) map[string]any {
	return map[string]any{
		"libra.queue.waited_ms": waited, "libra.queue.predicted_ms": predicted,
		"libra.queue.passed": passed, "libra.queue.passed_by": passedBy,
	}
}

// Revisions that get no more requests are forgotten, but not while a request waits.
func TestRevisionsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		lines := newLines(t, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
		throttler := lines.Throttler(newStock(1, 10))
		ctx, cancel := context.WithCancel(predictedAs(context.Background(), time.Second))
		var all sync.WaitGroup
		all.Go(func() {
			throttler.Try(ctx, revID, func(string, bool) error { <-ctx.Done(); return nil })
		})
		synctest.Wait()
		all.Go(func() {
			throttler.Try(ctx, named("waits"), func(string, bool) error { return nil })
		})
		synctest.Wait()
		time.Sleep(2 * forgetAfter)
		lines.of(named("new"), lines.now())
		var got []string
		for rev := range lines.lines {
			got = append(got, rev.Name)
		}
		if diff := cmp.Diff([]string{"new", "waits"}, slices.Sorted(slices.Values(got))); diff != "" {
			t.Error("Known revisions (-want, +got):\n" + diff)
		}
		cancel()
		all.Wait()
	})
}

func named(revision string) types.NamespacedName {
	return types.NamespacedName{Namespace: revID.Namespace, Name: revision}
}
