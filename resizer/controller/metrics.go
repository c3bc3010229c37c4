package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	nodeKey      = attribute.Key("node")
	directionKey = attribute.Key("direction") // restore, lower, raise, nudge
	resultKey    = attribute.Key("result")
	reasonKey    = attribute.Key("reason")
	operationKey = attribute.Key("operation") // read, follow
)

// Results of a resize.
const (
	resultAccepted = "accepted"
	resultConflict = "conflict"
	resultRefused  = "refused"
	resultFailed   = "failed"
	resultLimited  = "limited" // held back by a rate limit
)

// Reasons of a resize.
const (
	reasonMemory  = "memory"  // it is lent, needed or taken back
	reasonCeiling = "ceiling" // to the ceiling of source node, or back from it
	reasonRestore = "restore" // back towards the user allocation
	reasonRepair  = "repair"  // to make the kubelet write what an agent may have left
)

type metrics struct {
	resizes    metric.Int64Counter
	poolErrors metric.Int64Counter
	badMaxCPU  metric.Int64Counter
	latency    metric.Float64Histogram

	// Observed by callbacks, so that a node that is gone leaves no series behind.
	mu          sync.Mutex
	silentNodes map[string]bool
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	meter := provider.Meter(instrumentation)
	m := &metrics{silentNodes: map[string]bool{}}
	var errs [5]error
	m.resizes, errs[0] = meter.Int64Counter("libra.resizer.resizes",
		metric.WithDescription("Patches of pods/resize, by `direction` (restore, lower, raise, nudge), `result` (accepted, conflict, refused, failed, limited) and `reason` (memory, ceiling, restore, repair). Many for repair mean missing agents"))
	m.poolErrors, errs[1] = meter.Int64Counter("libra.resizer.pool.errors",
		metric.WithDescription("Failed Redis calls, by `operation`: read or follow"))
	m.latency, errs[2] = meter.Float64Histogram("libra.resizer.resize.latency", metric.WithUnit("s"),
		metric.WithDescription("Time from planning a resize until the pod's status shows it"),
		metric.WithExplicitBucketBoundaries(.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	_, errs[3] = meter.Int64ObservableGauge("libra.resizer.node.silent",
		metric.WithDescription("1 while the `node` has no ready agent, 0 while it has one"), metric.WithInt64Callback(m.observeSilent))
	m.badMaxCPU, errs[4] = meter.Int64Counter("libra.resizer.max.cpu.refused",
		metric.WithDescription("Pods whose annotation libra.dev/max-cpu could not be read, so their ceiling is their user allocation"))
	return m, errors.Join(errs[:]...)
}

func (m *metrics) resized(ctx context.Context, r resize, result string) {
	m.resizes.Add(ctx, 1, metric.WithAttributes(directionKey.String(r.direction.String()), resultKey.String(result), reasonKey.String(r.reason)))
}

func (m *metrics) inForce(ctx context.Context, took time.Duration) {
	m.latency.Record(ctx, took.Seconds())
}

func (m *metrics) poolFailed(ctx context.Context, operation string) {
	m.poolErrors.Add(ctx, 1, metric.WithAttributes(operationKey.String(operation)))
}

func (m *metrics) maxCPURefused(ctx context.Context) { m.badMaxCPU.Add(ctx, 1) }

func (m *metrics) silent(node string, silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silentNodes[node] = silent
}

func (m *metrics) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.silentNodes, node)
}

func (m *metrics) observeSilent(_ context.Context, o metric.Int64Observer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, silent := range m.silentNodes {
		var v int64
		if silent {
			v = 1
		}
		o.Observe(v, metric.WithAttributes(nodeKey.String(node)))
	}
	return nil
}
