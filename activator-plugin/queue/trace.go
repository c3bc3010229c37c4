package queue

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// trace records on the span in ctx, which is that of the wait, what the request gained
// and lost by the order.
func trace(ctx context.Context, req Request, waited time.Duration, passed, passedBy int) {
	span := oteltrace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.Float64("libra.queue.waited_ms", milliseconds(waited)),
		attribute.Int("libra.queue.passed", passed),
		attribute.Int("libra.queue.passed_by", passedBy),
	)
	if req.Predicted > 0 {
		span.SetAttributes(attribute.Float64("libra.queue.predicted_ms", milliseconds(req.Predicted)))
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
