package api

import (
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestTraceparent(t *testing.T) {
	config := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled}
	sampled := trace.NewSpanContext(config)
	const want = "00-01000000000000000000000000000000-0200000000000000-01"
	if got := Traceparent(sampled); got != want {
		t.Errorf("the traceparent is %q, want %q", got, want)
	}
	if got := Traceparent(sampled.WithTraceFlags(0)); got != "" {
		t.Errorf("a span that is not sampled has traceparent %q", got)
	}
	if got := Traceparent(trace.SpanContext{}); got != "" {
		t.Errorf("no span has traceparent %q", got)
	}

	got := trace.SpanContextFromContext(ContextWithTraceparent(t.Context(), want))
	if !got.Equal(sampled.WithRemote(true)) {
		t.Errorf("%q is read as %v", want, got)
	}
	for _, broken := range []string{"", "00-", want[1:] + "x"} {
		if got := ContextWithTraceparent(t.Context(), broken); got != t.Context() {
			t.Errorf("%q is read as %v", broken, trace.SpanContextFromContext(got))
		}
	}
}
