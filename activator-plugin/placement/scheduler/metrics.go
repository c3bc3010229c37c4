package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"k8s.io/component-base/metrics/legacyregistry"
)

const scopeName = "libra.dev/libra/activator-plugin/placement/scheduler"

// outcome is what is known about a function's pod: the attribute "outcome".
type outcome string

const (
	outcomeBorrower outcome = "borrower"
	outcomeDonor    outcome = "donor"
	outcomeNeither  outcome = "neither" // its function needs what it has, or its mode leaves it alone
	outcomeUnknown  outcome = "unknown" // nothing has been heard about its function, or it has no limit
	outcomeStale    outcome = "stale"   // nothing is heard about nodes
)

type metrics struct {
	opinions    metric.Int64Counter
	unplaceable metric.Int64Counter
	failures    metric.Int64Counter
	skipped     metric.Int64Counter
}

// meterProvider exports metrics where the scheduler exports its own. There is one, however many profiles have the
// plugin.
var meterProvider = sync.OnceValues(func() (metric.MeterProvider, error) {
	exporter, err := prometheus.New(prometheus.WithRegisterer(legacyregistry.Registerer()), prometheus.WithoutTargetInfo(), prometheus.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("plugin %s: making its metrics: %w", Name, err)
	}
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)), nil
})

func newMetrics(provider metric.MeterProvider) (*metrics, error) {
	meter, m := provider.Meter(scopeName), &metrics{}
	var errs [4]error
	m.opinions, errs[0] = meter.Int64Counter("libra.scheduler.pods",
		metric.WithDescription("Attempts to place functions' pods, by what is known about them (`outcome`) and whether a placement `policy` applies to them"), metric.WithUnit("{attempt}"))
	m.unplaceable, errs[1] = meter.Int64Counter("libra.scheduler.unplaceable",
		metric.WithDescription("Attempts to place pods whose placement policy names no existing node"), metric.WithUnit("{attempt}"))
	m.failures, errs[2] = meter.Int64Counter("libra.scheduler.redis.failures",
		metric.WithDescription("Failures to ask Redis what nodes lend and functions need"), metric.WithUnit("{failure}"))
	m.skipped, errs[3] = meter.Int64Counter("libra.scheduler.observations.skipped",
		metric.WithDescription("Observations skipped because their version is unknown or they are unreadable"), metric.WithUnit("{observation}"))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("plugin %s: making its metrics: %w", Name, err)
	}
	// Without failures they are 0, and not absent.
	for _, failures := range []metric.Int64Counter{m.unplaceable, m.failures, m.skipped} {
		failures.Add(context.Background(), 0)
	}
	return m, nil
}

func (m *metrics) opinion(ctx context.Context, is outcome, policy bool) {
	m.opinions.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", string(is)), attribute.Bool("policy", policy)))
}
