package api

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const traceparentHeader = "traceparent"

// Traceparent returns the W3C traceparent of a span that is sampled, and "" for any
// other. It leaves out the tracestate, which vendors add beside it.
func Traceparent(span trace.SpanContext) string {
	if !span.IsSampled() || !span.IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier[traceparentHeader]
}

// ContextWithTraceparent returns a context in which new spans are children of the span
// that traceparent names, or ctx itself if it names none.
func ContextWithTraceparent(ctx context.Context, traceparent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparentHeader: traceparent})
}
