package main

import (
	"os"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

const (
	// metricSetsEnv is where OpenTelemetry's SDK looks for how many attribute sets it keeps of a metric. It
	// is the only way to set that for Knative's metrics, and counts for Libra's as well.
	metricSetsEnv = "OTEL_GO_X_CARDINALITY_LIMIT"
	// metricSets is enough for 10,000 revisions with ten sets each. The SDK's own 2,000 are enough for 200:
	// all others are counted in one series with the label otel_metric_overflow.
	metricSets = 100_000
)

// roomForRevisions makes a provider keep metricSets, unless the environment says how many. It is only for
// Libra's own metrics. Knative's have the Host that a client asks for, so clients could fill the room.
func roomForRevisions() []sdkmetric.Option {
	if os.Getenv(metricSetsEnv) != "" {
		return nil
	}
	return []sdkmetric.Option{sdkmetric.WithCardinalityLimit(metricSets)}
}
