package placement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const pictureScope = "libra.dev/libra/activator-plugin/placement"

// Results of a refresh of the picture: the values of the attribute "result".
const (
	refreshOK    = "ok"
	refreshError = "error"
)

type pictureMetrics struct {
	refreshes  metric.Float64Histogram
	ok, failed metric.MeasurementOption
}

// newPictureMetrics makes the metrics of a picture. figures returns how many nodes are known, and how old that
// knowledge is.
func newPictureMetrics(mp metric.MeterProvider, figures func() (nodes int, age time.Duration)) (*pictureMetrics, error) {
	var (
		meter = mp.Meter(pictureScope)
		m     = pictureMetrics{ok: refreshResult(refreshOK), failed: refreshResult(refreshError)}
		errs  [4]error
		nodes metric.Int64ObservableGauge
		age   metric.Float64ObservableGauge
	)
	m.refreshes, errs[0] = meter.Float64Histogram("libra.placement.picture.refresh.duration",
		metric.WithDescription("Time to fetch what has changed in all nodes' pools, ten times a second, or once a second where no request is placed by it, by `result`: ok or error"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5))
	nodes, errs[1] = meter.Int64ObservableGauge("libra.placement.picture.nodes",
		metric.WithDescription("Nodes whose pools are known"),
		metric.WithUnit("{node}"))
	age, errs[2] = meter.Float64ObservableGauge("libra.placement.picture.age",
		metric.WithDescription("Time since the oldest part of what is known about the pools was asked for. Parts older than 2 s count as unknown"),
		metric.WithUnit("s"))
	_, errs[3] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		known, old := figures()
		o.ObserveInt64(nodes, int64(known))
		o.ObserveFloat64(age, old.Seconds())
		return nil
	}, nodes, age)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the metrics of the picture: %w", err)
	}
	return &m, nil
}

func refreshResult(name string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("result", name)))
}

func (m *pictureMetrics) refreshed(err error, took time.Duration) {
	of := m.ok
	if err != nil {
		of = m.failed
	}
	m.refreshes.Record(context.Background(), took.Seconds(), of)
}
