package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
	servingmetrics "knative.dev/serving/pkg/metrics"
)

const scopeName = "libra.dev/libra/activator-plugin/queue"

// The attribute "order" of what is counted.
const (
	orderKey           = attribute.Key("order")
	orderShortestFirst = "shortest_first"
	orderFIFO          = "fifo"
)

type metrics struct {
	wait      metric.Float64Histogram
	overtaken metric.Int64Counter
}

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	var (
		meter = mp.Meter(scopeName)
		m     metrics
		errs  [2]error
	)
	m.wait, errs[0] = meter.Float64Histogram("libra.queue.wait",
		metric.WithDescription("Time that requests waited in the activator for a free slot, or until their client left or their time ran out, per revision, by queue `order` (shortest_first, fifo); 0 for those that found one"),
		metric.WithUnit("s"),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 300))
	m.overtaken, errs[1] = meter.Int64Counter("libra.queue.overtaken",
		metric.WithDescription("Times that a request waiting in the activator was overtaken by a later one, per revision"),
		metric.WithUnit("{request}"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("making the queue metrics: %w", err)
	}
	return &m, nil
}

// optionsOf makes the attribute sets of a revision once, as that costs more than counting.
func optionsOf(revID types.NamespacedName) (shortestFirst, fifo []metric.RecordOption, overtaken []metric.AddOption) {
	namespace, revision := servingmetrics.K8sNamespaceKey.With(revID.Namespace), servingmetrics.RevisionNameKey.With(revID.Name)
	of := func(attrs ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(attrs, namespace, revision)...))
	}
	return []metric.RecordOption{of(orderKey.String(orderShortestFirst))},
		[]metric.RecordOption{of(orderKey.String(orderFIFO))},
		[]metric.AddOption{of()}
}

func (m *metrics) waited(of []metric.RecordOption, d time.Duration) {
	m.wait.Record(context.Background(), d.Seconds(), of...)
}

func (m *metrics) overtook(of []metric.AddOption, n int) {
	if n > 0 {
		m.overtaken.Add(context.Background(), int64(n), of...)
	}
}
