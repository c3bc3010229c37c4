package main

import (
	"os"
	"strconv"
)

const (
	// metricSetsEnv is where OpenTelemetry's SDK looks for how many sets of attributes it keeps of a
	// metric. Knative makes the providers, and has no other way to say it.
	metricSetsEnv = "OTEL_GO_X_CARDINALITY_LIMIT"
	// metricSets is for 10,000 revisions with ten sets each. The SDK's own 2,000 are 500 revisions, and
	// what is counted of all others is one series that says otel_metric_overflow.
	metricSets = 100_000
)

// makeRoomForRevisions has the SDK keep metricSets, unless the environment says how many. It is to be
// called before there are providers.
func makeRoomForRevisions() error {
	if _, ok := os.LookupEnv(metricSetsEnv); ok {
		return nil
	}
	return os.Setenv(metricSetsEnv, strconv.Itoa(metricSets))
}
