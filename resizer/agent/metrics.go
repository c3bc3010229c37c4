package agent

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	resultKey    = attribute.Key("result")
	operationKey = attribute.Key("operation") // next, observe
)

// What became of an invocation that ended.
const (
	resultObserved   = "observed"
	resultNotAlone   = "not-alone"   // others ran in its pod
	resultUnknownPod = "unknown-pod" // not sampled
	resultUncovered  = "uncovered"   // the samples do not cover it
	resultLate       = "late"        // Redis was away when it ended
	resultUnreadable = "unreadable"  // of an unknown version, or broken
	resultDropped    = "dropped"     // too many wait to be appended
)

type metrics struct {
	invocations  metric.Int64Counter
	containers   metric.Int64Gauge
	sampleErrors metric.Int64Counter
	redisErrors  metric.Int64Counter
}

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	meter := provider.Meter("libra.dev/libra/resizer/agent")
	m := &metrics{}
	var errs [4]error
	m.invocations, errs[0] = meter.Int64Counter("libra.agent.invocations",
		metric.WithDescription("Invocations that ended on this node, by what became of their observation"))
	m.containers, errs[1] = meter.Int64Gauge("libra.agent.containers",
		metric.WithDescription("Containers that are sampled"))
	m.sampleErrors, errs[2] = meter.Int64Counter("libra.agent.sample.errors",
		metric.WithDescription("Failed reads of a container's cgroup"))
	m.redisErrors, errs[3] = meter.Int64Counter("libra.agent.redis.errors",
		metric.WithDescription("Failed calls of Redis, by operation"))
	return m, errors.Join(errs[:]...)
}

func (m *metrics) ended(ctx context.Context, result string, count int64) {
	if count > 0 {
		m.invocations.Add(ctx, count, metric.WithAttributes(resultKey.String(result)))
	}
}

func (m *metrics) redisFailed(ctx context.Context, operation string) {
	m.redisErrors.Add(ctx, 1, metric.WithAttributes(operationKey.String(operation)))
}
