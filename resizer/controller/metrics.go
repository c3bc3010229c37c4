package controller

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	nodeKey      = attribute.Key("node")
	functionKey  = attribute.Key("function")
	directionKey = attribute.Key("direction") // restore, lower, raise
	resultKey    = attribute.Key("result")
	causeKey     = attribute.Key("cause")
	operationKey = attribute.Key("operation") // read, open, wait
)

// Results of a resize.
const (
	resultAccepted = "accepted"
	resultConflict = "conflict"
	resultRefused  = "refused"
	resultFailed   = "failed"
	resultLimited  = "limited" // held back by the node's rate limit
)

// Causes of a restore.
const (
	causeReleased    = "released"      // the balance fell
	causePoolLost    = "pool-lost"     // the pool could not be read for a lease
	causeStart       = "start"         // below its user allocation when first seen, and no balance says why
	causeMemoryInUse = "memory-in-use" // a memory decrease did not come into force
)

type metrics struct {
	resizes    metric.Int64Counter
	restores   metric.Int64Counter
	belowOwed  metric.Float64Counter
	poolErrors metric.Int64Counter
	nodeOpen   metric.Int64Gauge
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	meter := provider.Meter("libra.dev/libra/resizer/controller")
	m := &metrics{}
	var errs [5]error
	m.resizes, errs[0] = meter.Int64Counter("libra.resizer.resizes",
		metric.WithDescription("Resizes issued, by what they do to the pod and what the API server answered"))
	m.restores, errs[1] = meter.Int64Counter("libra.resizer.restores",
		metric.WithDescription("Resizes that raised a pod towards its user allocation, by cause"))
	m.belowOwed, errs[2] = meter.Float64Counter("libra.resizer.below.owed", metric.WithUnit("s"),
		metric.WithDescription("Time that pods had less in force than their user allocation without what they lend"))
	m.poolErrors, errs[3] = meter.Int64Counter("libra.resizer.pool.errors",
		metric.WithDescription("Failed calls of the pool, by operation"))
	m.nodeOpen, errs[4] = meter.Int64Gauge("libra.resizer.node.open",
		metric.WithDescription("1 while the node is allowed to lend"))
	return m, errors.Join(errs[:]...)
}

func (m *metrics) resized(ctx context.Context, d direction, result string) {
	m.resizes.Add(ctx, 1, metric.WithAttributes(directionKey.String(d.String()), resultKey.String(result)))
}

func (m *metrics) restored(ctx context.Context, cause string) {
	m.restores.Add(ctx, 1, metric.WithAttributes(causeKey.String(cause)))
}

func (m *metrics) below(ctx context.Context, function string, d time.Duration) {
	m.belowOwed.Add(ctx, d.Seconds(), metric.WithAttributes(functionKey.String(function)))
}

func (m *metrics) poolFailed(ctx context.Context, operation string) {
	m.poolErrors.Add(ctx, 1, metric.WithAttributes(operationKey.String(operation)))
}

func (m *metrics) opened(ctx context.Context, node string, open bool) {
	var v int64
	if open {
		v = 1
	}
	m.nodeOpen.Record(ctx, v, metric.WithAttributes(nodeKey.String(node)))
}
