package predict

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scopeName = "libra.dev/libra/activator-plugin/predict"

// source is where an answer on the request path came from, or why there was none:
// the attribute "source".
type source int

const (
	fromTable     source = iota // a hit
	fromStale                   // a hit on a table that is due to be fetched again
	fromAsked                   // a miss for which the predictor answered within the budget
	fromProfiling               // no answer: the function has too few observations
	fromUnknown                 // no answer: the predictor does not know the function
	fromTimeout                 // no answer within the budget
	fromCancelled               // the request ended while it waited
	fromNothing                 // no answer: the predictor fails, or a limit was reached
	sources
)

var sourceNames = [sources]string{"table", "stale", "asked", "profiling", "unknown", "timeout", "cancelled", "none"}

// Results of a fetch, the values of the attribute "result".
const (
	fetchOK        = "ok"
	fetchOlder     = "older"     // than the table in hand: from a replica that lags
	fetchNotFound  = "not_found" // the function has no model yet
	fetchMalformed = "malformed"
	fetchError     = "error"
)

// Limits at which no fetch is made, the values of the attribute "limit".
const (
	limitFetches   = "fetches"
	limitFunctions = "functions"
	limitBreaker   = "breaker"
)

// Results of an announced change of a function, or of an announcement that cannot be
// read: the values of the attribute "result".
const (
	announcementApplied        = "applied"
	announcementKnown          = "known" // the table in hand has this version
	announcementOther          = "other_function"
	announcementMalformed      = "malformed"
	announcementUnknownVersion = "unknown_version"
)

type metrics struct {
	answers       metric.Int64Counter
	age           metric.Float64Histogram
	fetches       metric.Float64Histogram
	skipped       metric.Int64Counter
	announcements metric.Int64Counter
	breaker       metric.Int64Gauge

	// The options are made once, so that an answer allocates nothing.
	bySource [sources][]metric.AddOption
}

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	var (
		meter = mp.Meter(scopeName)
		m     metrics
		errs  [6]error
	)
	m.answers, errs[0] = meter.Int64Counter("libra.predict.answers",
		metric.WithDescription("Predictions requested on the request path, by `source` of the answer, or why there was none: "+strings.Join(sourceNames[:], ", ")),
		metric.WithUnit("{prediction}"))
	m.age, errs[1] = meter.Float64Histogram("libra.predict.table.age",
		metric.WithDescription("Age of the step table behind an answer, since it was fetched"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.1, 1, 5, 10, 20, 30, 60, 300, 900, 1800, 3600))
	m.fetches, errs[2] = meter.Float64Histogram("libra.predict.fetch.duration",
		metric.WithDescription("Time to fetch a step table from the predictor, by `result`: ok, older, not_found, malformed or error"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5))
	m.skipped, errs[3] = meter.Int64Counter("libra.predict.fetches.skipped",
		metric.WithDescription("Step tables not fetched because of a `limit`: fetches, functions or breaker"),
		metric.WithUnit("{fetch}"))
	m.announcements, errs[4] = meter.Int64Counter("libra.predict.announcements",
		metric.WithDescription("Changes announced by the predictor, by `result`: applied, known, other_function, malformed or unknown_version"),
		metric.WithUnit("{announcement}"))
	m.breaker, errs[5] = meter.Int64Gauge("libra.predict.breaker",
		metric.WithDescription("1 for the current `state` of the circuit breaker around the predictor (closed, half-open or open), else 0"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the predictor client's metrics: %w", err)
	}
	for i, name := range sourceNames {
		m.bySource[i] = []metric.AddOption{attributes("source", name)}
	}
	return &m, nil
}

func attributes(key, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))
}

func (m *metrics) answered(from source) {
	m.answers.Add(context.Background(), 1, m.bySource[from]...)
}

func (m *metrics) used(age time.Duration) {
	m.age.Record(context.Background(), age.Seconds())
}

func (m *metrics) fetched(result string, took time.Duration) {
	m.fetches.Record(context.Background(), took.Seconds(), attributes("result", result))
}

func (m *metrics) skippedAt(limit string) {
	m.skipped.Add(context.Background(), 1, attributes("limit", limit))
}

func (m *metrics) announced(result string) {
	m.announcements.Add(context.Background(), 1, attributes("result", result))
}

func (m *metrics) breakerIs(now gobreaker.State) {
	for _, s := range []gobreaker.State{gobreaker.StateClosed, gobreaker.StateHalfOpen, gobreaker.StateOpen} {
		var in int64
		if s == now {
			in = 1
		}
		m.breaker.Record(context.Background(), in, attributes("state", s.String()))
	}
}
