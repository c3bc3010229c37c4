package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
)

// count makes a provider count once for each of a number of attribute sets.
func count(t *testing.T, provider metric.MeterProvider, sets int) {
	t.Helper()
	counter, err := provider.Meter("").Int64Counter("counted")
	if err != nil {
		t.Fatal(err)
	}
	for i := range sets {
		counter.Add(context.Background(), 1, metric.WithAttributes(attribute.Int("revision", i)))
	}
}

// served returns how many series Libra serves of a counter with that many attribute sets.
func served(t *testing.T, sets int) int {
	t.Helper()
	t.Setenv(metricsAddrEnv, "127.0.0.1:0")
	e := startExport(zap.NewNop().Sugar())
	defer e.stop(context.Background())
	count(t, e.provider, sets)
	w := httptest.NewRecorder()
	e.mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return strings.Count(w.Body.String(), "\ncounted_total{")
}

// kept returns how many series a provider with the options has of a counter with that many attribute
// sets.
func kept(t *testing.T, sets int, options ...sdkmetric.Option) int {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	count(t, sdkmetric.NewMeterProvider(append(options, sdkmetric.WithReader(reader))...), sets)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	return len(all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints)
}

func TestLibrasMetricsHaveRoomForRevisions(t *testing.T) {
	t.Setenv(metricSetsEnv, "")
	if got := served(t, 3000); got != 3000 {
		t.Errorf("%d series of 3,000 are served: the others have overflowed", got)
	}
	if got := kept(t, metricSets+1000, roomForRevisions()...); got != metricSets {
		t.Errorf("%d series of %d, want no more than %d", got, metricSets+1000, metricSets)
	}
}

// Clients choose label values of Knative's metrics, by the Host that they ask for.
func TestOtherMetricsHaveTheBoundOfTheSDK(t *testing.T) {
	t.Setenv(metricSetsEnv, "")
	served(t, 1)
	if got := kept(t, 3000); got != 2000 {
		t.Errorf("a provider that is not Libra's has %d series of 3,000, want OpenTelemetry's own bound, 2,000", got)
	}
}

func TestTheOwnersBoundOfMetricsStands(t *testing.T) {
	t.Setenv(metricSetsEnv, "50")
	if got := served(t, 100); got != 50 {
		t.Errorf("%d series, want the 50 that the environment says", got)
	}
}
