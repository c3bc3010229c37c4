package predict

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scopeName = "libra.dev/libra/activator-plugin/predict"

// Results of a fetch, the values of the attribute "result".
const (
	fetchOK        = "ok"
	fetchNotFound  = "not_found" // the function has no model yet
	fetchMalformed = "malformed"
	fetchError     = "error"
)

type metrics struct {
	answers metric.Int64Counter
	fetches metric.Float64Histogram
	skipped metric.Int64Counter

	// The options are made once, so that an answer allocates nothing.
	fromTable, fromNothing []metric.AddOption
}

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	var (
		meter = mp.Meter(scopeName)
		m     metrics
		err   error
	)
	if m.answers, err = meter.Int64Counter("libra.predict.answers",
		metric.WithDescription("Predictions asked for on the request path, by where the answer came from: table or none"),
		metric.WithUnit("{prediction}")); err != nil {
		return nil, err
	}
	if m.fetches, err = meter.Float64Histogram("libra.predict.fetch.duration",
		metric.WithDescription("Time to fetch a step table from the predictor, off the request path"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .2, .5)); err != nil {
		return nil, err
	}
	if m.skipped, err = meter.Int64Counter("libra.predict.fetches.skipped",
		metric.WithDescription("Step tables not fetched because a limit was reached: fetches or functions"),
		metric.WithUnit("{fetch}")); err != nil {
		return nil, err
	}
	m.fromTable = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("source", "table")))}
	m.fromNothing = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("source", "none")))}
	return &m, nil
}

func (m *metrics) answered(fromTable bool) {
	if fromTable {
		m.answers.Add(context.Background(), 1, m.fromTable...)
	} else {
		m.answers.Add(context.Background(), 1, m.fromNothing...)
	}
}

func (m *metrics) fetched(result string, took time.Duration) {
	m.fetches.Record(context.Background(), took.Seconds(),
		metric.WithAttributeSet(attribute.NewSet(attribute.String("result", result))))
}

func (m *metrics) skippedAt(limit string) {
	m.skipped.Add(context.Background(), 1,
		metric.WithAttributeSet(attribute.NewSet(attribute.String("limit", limit))))
}
