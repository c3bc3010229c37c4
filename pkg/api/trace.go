package api

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const traceparentHeader = "traceparent"

// Traceparent is the W3C traceparent of a span that is sampled, and empty for any other.
// What vendors add beside it, the tracestate, is left out.
func Traceparent(span trace.SpanContext) string {
	if !span.IsSampled() || !span.IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	return carrier[traceparentHeader]
}

// ContextWithTraceparent is a context of which new spans are children of the span that
// the traceparent names; ctx itself when it names none.
func ContextWithTraceparent(ctx context.Context, traceparent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparentHeader: traceparent})
}
