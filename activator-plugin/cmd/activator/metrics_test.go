package main

import (
	"context"
	"os"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// series counts those of one counter with so many sets of attributes.
func series(t *testing.T, sets int) int {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	counter, err := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("").Int64Counter("counted")
	if err != nil {
		t.Fatal(err)
	}
	for i := range sets {
		counter.Add(context.Background(), 1, metric.WithAttributes(attribute.Int("revision", i)))
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	return len(all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints)
}

func TestTenThousandRevisionsHaveTheirOwnMetrics(t *testing.T) {
	t.Setenv(metricSetsEnv, "") // so that it is put back
	if err := os.Unsetenv(metricSetsEnv); err != nil {
		t.Fatal(err)
	}
	if err := makeRoomForRevisions(); err != nil {
		t.Fatal(err)
	}
	if got := series(t, 90_000); got != 90_000 {
		t.Errorf("%d series of 90,000: the others have overflowed", got)
	}
	if got := series(t, metricSets+1000); got != metricSets {
		t.Errorf("%d series, want no more than %d", got, metricSets)
	}
}

func TestTheOwnersBoundOfMetricsStands(t *testing.T) {
	t.Setenv(metricSetsEnv, "50")
	if err := makeRoomForRevisions(); err != nil {
		t.Fatal(err)
	}
	if got := os.Getenv(metricSetsEnv); got != "50" || series(t, 100) != 50 {
		t.Errorf("the bound is %s, and there are %d series; want 50", got, series(t, 100))
	}
}
