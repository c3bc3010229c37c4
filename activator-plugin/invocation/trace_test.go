package invocation

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

func newSpans() (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	spans := tracetest.NewSpanRecorder()
	return spans, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
}

// Each try of a call is a child of the request's span, also after that has ended. The
// pool gets the span of the try that reached it.
func TestSpansOfCalls(t *testing.T) {
	spans, provider := newSpans()
	begins, ends := 0, 0
	rec := &recorder{
		beginHook: func(context.Context, pool.Invocation) error {
			if begins++; begins == 1 {
				return errors.New("connection refused")
			}
			return nil
		},
		endHook: func(context.Context, pool.Ending) error {
			if ends++; ends == 1 {
				return errors.New("i/o timeout")
			}
			return nil
		},
	}
	l := newTestLifecycle(t, rec, clock.RealClock{})
	l.tracer = newTracer(provider)

	_, request := provider.Tracer("test").Start(t.Context(), "request")
	inv := invocationIn("ns/a", "1")
	inv.Trace = api.Traceparent(request.SpanContext())
	request.End()
	f := l.start(revID, "node-a", inv)
	rec.await(t, 2)
	f.finish(200)
	drain(t, l)

	type made struct {
		name   string
		parent trace.SpanID
		status codes.Code
	}
	var got []made
	var traces []string
	for _, span := range spans.Ended() {
		got = append(got, made{span.Name(), span.Parent().SpanID(), span.Status().Code})
		traces = append(traces, api.Traceparent(span.SpanContext()))
	}
	parent := request.SpanContext().SpanID()
	want := []made{
		{"request", trace.SpanID{}, codes.Unset},
		{spanBegin, parent, codes.Error}, {spanBegin, parent, codes.Unset},
		{spanEnd, parent, codes.Error}, {spanEnd, parent, codes.Unset},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(made{})); diff != "" {
		t.Fatal("Spans (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff(traces[1:3], []string{rec.begins[0].Trace, rec.begins[1].Trace}); diff != "" {
		t.Error("The pool's traces (-want, +got):\n" + diff)
	}
}

// Without a tracer in the activator, the trace that the gateway began goes on behind it.
func TestTraceWithoutATracer(t *testing.T) {
	rec := &recorder{}
	l := newTestLifecycle(t, rec, clock.RealClock{})
	inv := invocationIn("ns/a", "1")
	inv.Trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	l.start(revID, "node-a", inv).finish(200)
	drain(t, l)
	if got := rec.begins[0].Trace; got != inv.Trace {
		t.Errorf("The pool's trace is %q, want %q", got, inv.Trace)
	}
}

func TestNoSpansOfWhatIsNotSampled(t *testing.T) {
	spans, provider := newSpans()
	rec := &recorder{}
	l := newTestLifecycle(t, rec, clock.RealClock{})
	l.tracer = newTracer(provider)
	l.start(revID, "node-a", invocationIn("ns/a", "1")).finish(200)
	drain(t, l)
	if started := spans.Started(); len(started) != 0 {
		t.Errorf("%d spans were begun, want none", len(started))
	}
	if got := rec.begins[0].Trace; got != "" {
		t.Errorf("The pool's trace is %q, want none", got)
	}
}
