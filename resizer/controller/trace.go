package controller

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/telemetry"
)

const instrumentation = "libra.dev/libra/resizer/controller"

// span starts the span of a resize, as a child of the span of the invocation that the loan is for.
// Limits are in milli CPU and bytes.
func (c *Controller) span(n *node, r resize) trace.Span {
	m := r.pod
	if m.calls.trace == "" {
		return telemetry.Untraced
	}
	_, span := c.tracer.Start(api.ContextWithTraceparent(context.Background(), m.calls.trace), "libra.resize",
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("libra.way", "api"),
			attribute.String("libra.node", n.name),
			attribute.String("libra.pod", m.name),
			attribute.String("libra.container", m.user.Name),
			attribute.String("libra.direction", r.direction.String()),
			attribute.String("libra.reason", r.reason),
			attribute.Int64("libra.cpu.from", m.asked.CPUMilli),
			attribute.Int64("libra.cpu.to", r.limits.CPUMilli),
			attribute.Int64("libra.memory.from", m.asked.MemoryBytes),
			attribute.Int64("libra.memory.to", r.limits.MemoryBytes),
		))
	return span
}
