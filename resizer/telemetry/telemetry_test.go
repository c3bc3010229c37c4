package telemetry

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

func newTelemetry(t *testing.T) (*Telemetry, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	told, err := New(t.Context(), "libra-agent", registry, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	return told, registry
}

// targetInfo returns the labels that tell Prometheus about the service.
func targetInfo(t *testing.T, registry *prometheus.Registry) map[string]string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for _, f := range families {
		if f.GetName() == "target_info" {
			for _, l := range f.GetMetric()[0].GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
		}
	}
	return labels
}

func TestServiceHasAName(t *testing.T) {
	_, registry := newTelemetry(t)
	info := targetInfo(t, registry)
	if info["service_name"] != "libra-agent" || info["service_instance_id"] == "" {
		t.Errorf("target_info is %v, want the service's name and an instance", info)
	}

	t.Setenv("OTEL_SERVICE_NAME", "agents-of-blue")
	_, registry = newTelemetry(t)
	if got := targetInfo(t, registry)["service_name"]; got != "agents-of-blue" {
		t.Errorf("with OTEL_SERVICE_NAME the service is %q", got)
	}
}

// The resizer has a series for each node.
func TestMetricsOfManyNodes(t *testing.T) {
	told, registry := newTelemetry(t)
	const nodes = 10_000
	gauge, err := told.Meters.Meter("").Int64Gauge("silent")
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		gauge.Record(t.Context(), 1, metric.WithAttributes(attribute.Int("node", i)))
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, f := range families {
		if f.GetName() == "silent" {
			series = len(f.GetMetric())
		}
	}
	if series != nodes {
		t.Errorf("%d series of %d nodes", series, nodes)
	}
}

func TestSpansAreSentWhereTheEnvironmentSays(t *testing.T) {
	var sent atomic.Int32
	var path atomic.Value
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // only the request counts
		path.Store(r.URL.Path)
		sent.Add(1)
	}))
	defer collector.Close()

	without, _ := newTelemetry(t)
	_, span := without.Tracers.Tracer("").Start(t.Context(), "a")
	span.End()
	if span.IsRecording() || span.SpanContext().IsValid() {
		t.Error("without an endpoint spans are made")
	}
	without.Shutdown()

	for variable, wantPath := range map[string]string{endpointVariable: "/v1/traces", tracesEndpointVariable: "/"} {
		t.Run(variable, func(t *testing.T) {
			t.Setenv(variable, collector.URL)
			sent.Store(0)
			told, _ := newTelemetry(t)
			_, span := told.Tracers.Tracer("").Start(t.Context(), "a")
			span.End()
			told.Shutdown()
			if sent.Load() != 1 || path.Load() != wantPath {
				t.Errorf("%d requests, the last to %v; want 1 to %s", sent.Load(), path.Load(), wantPath)
			}
		})
	}
}

func TestBadEnvironment(t *testing.T) {
	for _, tc := range []struct {
		name, variable, value, want string
	}{
		{"no scheme", endpointVariable, "collector:4318", "want http://HOST[:PORT]"},
		{"no host", tracesEndpointVariable, "http://", "want http://HOST[:PORT]"},
		{"another protocol", protocolVariable, "grpc", "want http/protobuf"},
		{"another protocol of traces", tracesProtocolVariable, "http/json", "want http/protobuf"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(endpointVariable, "http://collector:4318")
			t.Setenv(tc.variable, tc.value)
			_, err := New(t.Context(), "libra-agent", prometheus.NewRegistry(), testr.New(t))
			if err == nil || !strings.Contains(err.Error(), tc.variable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %s and %q", err, tc.variable, tc.want)
			}
		})
	}
}
