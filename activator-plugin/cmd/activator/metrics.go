package main

import (
	"os"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

const (
	// metricSetsEnv is where OpenTelemetry's SDK looks for how many sets of attributes it keeps of a
	// metric: of Knative's, which has no other way to say it, as well as of Libra's.
	metricSetsEnv = "OTEL_GO_X_CARDINALITY_LIMIT"
	// metricSets is for 10,000 revisions with ten sets each. The SDK's own 2,000 are 500 revisions, and
	// what is counted of all others is one series that says otel_metric_overflow.
	metricSets = 100_000
)

// roomForRevisions has a provider keep metricSets, unless the environment says how many. It is for Libra's
// own metrics alone. Knative's have the Host that a client asks for, so that clients would fill the room.
func roomForRevisions() []sdkmetric.Option {
	if os.Getenv(metricSetsEnv) != "" {
		return nil
	}
	return []sdkmetric.Option{sdkmetric.WithCardinalityLimit(metricSets)}
}
