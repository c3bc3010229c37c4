package invocation

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	spanBegin = "libra.begin"
	spanEnd   = "libra.end"
)

// errNotSent is the error of a Begin that had no time left.
var errNotSent = errors.New("not sent: the pool did not answer the End of the pod's previous invocation in time")

// untraced is the span of an invocation that is not sampled.
var untraced = trace.SpanFromContext(context.Background())

func newTracer(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		provider = noop.NewTracerProvider()
	}
	return provider.Tracer(scopeName)
}

// span starts the span of a call to the pool, as a child of the request's. Such calls
// are off the request path, so the span may end after the request's.
func (f *flight) span(name string) trace.Span {
	if f.inv.Trace == "" {
		return untraced
	}
	_, span := f.tracer.Start(api.ContextWithTraceparent(context.Background(), f.inv.Trace), name,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("libra.invocation", f.inv.ID),
			attribute.String("libra.function", f.inv.Function),
			attribute.String("libra.pod", f.inv.Pod),
			attribute.String("libra.node", f.node),
		))
	return span
}

// addVolume adds a volume to a span: milli CPU, and bytes of memory.
func addVolume(span trace.Span, name string, v api.Resources) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int64(name+".cpu", v.CPUMilli), attribute.Int64(name+".memory", v.MemoryBytes))
	}
}

// addRank records on a span whether the pod is ranked, and by which CPU time: 0 when
// there was no prediction.
func addRank(span trace.Span, inv pool.Invocation) {
	if span.IsRecording() {
		span.SetAttributes(
			attribute.Bool("libra.ranked", inv.Ranked),
			attribute.Float64("libra.predicted.cpu_time_ms", float64(inv.CPUTime)/float64(time.Millisecond)),
		)
	}
}

// addError records on a span that the call failed, if it did.
func addError(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetStatus(codes.Error, err.Error())
	}
}
