package agent

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/telemetry"
)

const instrumentation = "libra.dev/libra/resizer/agent"

// span starts the span of a write, as a child of the span of the invocation whose loan
// it is for. Limits are in milli CPU, as in the log.
func (r *reflex) span(e *entry, w write) trace.Span {
	if e.trace == "" {
		return telemetry.Untraced
	}
	_, span := r.tracer.Start(api.ContextWithTraceparent(context.Background(), e.trace), "libra.resize", trace.WithAttributes(
		attribute.String("libra.way", "cgroup"),
		attribute.String("libra.node", r.settings.Node),
		attribute.String("libra.pod", e.pod),
		attribute.String("libra.container", e.info.container),
		attribute.String("libra.direction", w.direction.String()),
		attribute.String("libra.resource", "cpu"),
		attribute.Int64("libra.cpu.from", e.reading.Limit.CPUMilli),
		attribute.Int64("libra.cpu.to", w.to),
	))
	if w.direction == restore {
		span.SetAttributes(attribute.String("libra.cause", r.cause(e)))
	}
	return span
}
