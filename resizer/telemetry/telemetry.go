// Package telemetry sets up what the agent and the controller report about themselves: metrics on
// their /metrics always, and traces over OTLP where the environment says so.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const (
	endpointVariable       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpointVariable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	protocolVariable       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesProtocolVariable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	protocol               = "http/protobuf"

	// flushTime is how long a process that ends tries to send its last spans: a collector that is
	// away must not use up the grace period of the pod.
	flushTime = time.Second

	// metricSets is how many sets of attributes a metric has at most: the resizer has one for each of
	// some thousand nodes. By default the SDK keeps 2,000, and merges all others into one series.
	metricSets = 20_000
)

// Telemetry is a process's providers.
type Telemetry struct {
	Meters  *sdkmetric.MeterProvider
	Tracers trace.TracerProvider // its spans go nowhere when there is no endpoint

	flush func(context.Context) error
}

// New makes the telemetry of a service. Its metrics are in the registerer; its resource has the
// service's name, which OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override. Spans are sent when
// OTEL_EXPORTER_OTLP_ENDPOINT or its counterpart for traces is set; a failure to send them is logged
// and does no other harm.
func New(ctx context.Context, service string, registerer prometheus.Registerer, log logr.Logger) (*Telemetry, error) {
	instance, err := os.Hostname() // in a pod, the pod's name
	if err != nil {
		return nil, fmt.Errorf("describing the service %s: %w", service, err)
	}
	described, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.instance.id", instance)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("describing the service %s: %w", service, err)
	}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registerer), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("exporting metrics: %w", err)
	}
	t := &Telemetry{
		Meters:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter), sdkmetric.WithResource(described), sdkmetric.WithCardinalityLimit(metricSets)),
		Tracers: noop.NewTracerProvider(),
		flush:   func(context.Context) error { return nil },
	}

	endpoint, err := tracesEndpoint()
	if err != nil || endpoint == "" {
		return t, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Info("exporting traces failed", "reason", err.Error()) }))
	spans, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("exporting traces: %w", err)
	}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(described))
	t.Tracers, t.flush = tracers, tracers.Shutdown
	log.Info("traces are exported", "endpoint", endpoint)
	return t, nil
}

// tracesEndpoint returns where to send spans; empty when nobody wants them. The exporter reads it
// from the environment by itself, but would take a wrong one for none.
func tracesEndpoint() (string, error) {
	variable := tracesEndpointVariable
	if os.Getenv(variable) == "" {
		variable = endpointVariable
	}
	endpoint := os.Getenv(variable)
	if endpoint == "" {
		return "", nil
	}
	var errs []error
	if u, err := url.Parse(endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		errs = append(errs, fmt.Errorf("%s is %q, want http://HOST[:PORT] or https://HOST[:PORT]", variable, endpoint))
	}
	for _, v := range []string{tracesProtocolVariable, protocolVariable} {
		if p := cmp.Or(os.Getenv(v), protocol); p != protocol {
			errs = append(errs, fmt.Errorf("%s is %q, want %s, and the collector's port for it", v, p, protocol))
		}
	}
	return endpoint, errors.Join(errs...)
}

// Shutdown sends the spans that have not been sent yet, for at most a second.
func (t *Telemetry) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	if err := t.flush(ctx); err != nil {
		otel.Handle(fmt.Errorf("sending the last spans: %w", err))
	}
}

// Untraced is the span of a change for a loan that is not sampled.
var Untraced = trace.SpanFromContext(context.Background())

// EndSpan records on a span what became of the change, and ends the span.
func EndSpan(span trace.Span, result string, err error) {
	if span.IsRecording() {
		span.SetAttributes(attribute.String("libra.result", result))
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
	}
	span.End()
}
