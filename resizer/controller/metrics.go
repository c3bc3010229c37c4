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
	functionKey  = attribute.Key("function")
	directionKey = attribute.Key("direction") // restore, lower, raise, nudge
	resultKey    = attribute.Key("result")
	causeKey     = attribute.Key("cause")
	reasonKey    = attribute.Key("reason")
	wayKey       = attribute.Key("way")       // api
	operationKey = attribute.Key("operation") // read, wait
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
	reasonRecord   = "record"   // the agent has made it already, and it has stood
	reasonRestore  = "restore"  // back towards the user allocation
	reasonNudge    = "nudge"    // to make the kubelet write the cgroup
	reasonBackstop = "backstop" // there is no living agent to make it
	reasonCeiling  = "ceiling"  // to the ceiling of source node, or back from it
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
	badMaxCPU  metric.Int64Counter
	latency    metric.Float64Histogram

	// Observed, so that a node that is gone does not stay.
	mu          sync.Mutex
	silentNodes map[string]bool
	kept        map[string]int // pods whose ceiling is kept out of the spec, by node
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	meter := provider.Meter("libra.dev/libra/resizer/controller")
	m := &metrics{silentNodes: map[string]bool{}, kept: map[string]int{}}
	var errs [8]error
	m.resizes, errs[0] = meter.Int64Counter("libra.resizer.resizes",
		metric.WithDescription("Resizes issued, by what they do to the pod and what the API server answered"))
	m.restores, errs[1] = meter.Int64Counter("libra.resizer.restores",
		metric.WithDescription("Resizes that raised a pod towards its user allocation, by cause"))
	m.belowOwed, errs[2] = meter.Float64Counter("libra.resizer.below.owed", metric.WithUnit("s"),
		metric.WithDescription("Time that pods had less in force than their user allocation without what they lend"))
	m.poolErrors, errs[3] = meter.Int64Counter("libra.resizer.pool.errors",
		metric.WithDescription("Failed calls of the pool, by operation"))
	m.latency, errs[4] = meter.Float64Histogram("libra.resizer.resize.latency", metric.WithUnit("s"),
		metric.WithDescription("Time from reading the state to seeing in force what follows from it, by way"),
		metric.WithExplicitBucketBoundaries(.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30))
	_, errs[5] = meter.Int64ObservableGauge("libra.resizer.node.silent",
		metric.WithDescription("1 while no living agent of the node is known, 0 while there is one"), metric.WithInt64Callback(m.observeSilent))
	m.badMaxCPU, errs[6] = meter.Int64Counter("libra.resizer.max.cpu.refused",
		metric.WithDescription("Pods whose annotation libra.dev/max-cpu could not be read, so that their ceiling is their user allocation"))
	_, errs[7] = meter.Int64ObservableGauge("libra.resizer.ceilings.withheld",
		metric.WithDescription("Pods whose ceiling is kept out of their spec because a ResourceQuota counts CPU limits; the node agent sets it"),
		metric.WithInt64Callback(m.observeWithheld))
	return m, errors.Join(errs[:]...)
}

func (m *metrics) resized(ctx context.Context, d direction, result, reason string) {
	m.resizes.Add(ctx, 1, metric.WithAttributes(directionKey.String(d.String()), resultKey.String(result), reasonKey.String(reason)))
}

func (m *metrics) inForce(ctx context.Context, took time.Duration) {
	m.latency.Record(ctx, took.Seconds(), metric.WithAttributes(wayKey.String("api")))
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
	delete(m.kept, node)
}

func (m *metrics) withheld(node string, pods int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[node] = pods
}

func (m *metrics) observeWithheld(_ context.Context, o metric.Int64Observer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := 0
	for _, pods := range m.kept {
		sum += pods
	}
	o.Observe(int64(sum))
	return nil
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
