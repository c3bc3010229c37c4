package forward

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// outcome is how passing a request on ended: the attribute "outcome".
type outcome string

const (
	outcomeForwarded   outcome = "forwarded"
	outcomeNoActivator outcome = "no_activator" // no activator of the zone can be reached
	outcomeUnreachable outcome = "unreachable"  // nothing was sent, so it was served otherwise
	outcomeFailed      outcome = "failed"       // after it was sent, or because it was malformed
	outcomeCancelled   outcome = "cancelled"    // by the client
)

type metrics struct{ forwards metric.Int64Counter }

func newMetrics(mp metric.MeterProvider) (*metrics, error) {
	forwards, err := mp.Meter(scopeName).Int64Counter("libra.placement.forwards",
		metric.WithDescription("Requests to forward to an activator in another `zone`, by `outcome`: forwarded, no_activator, unreachable, failed or cancelled"),
		metric.WithUnit("{request}"))
	if err != nil {
		return nil, fmt.Errorf("making the metrics of requests passed on: %w", err)
	}
	return &metrics{forwards}, nil
}

func (m *metrics) onForward(zone string, o outcome) {
	m.forwards.Add(context.Background(), 1, metric.WithAttributes(attribute.String("zone", zone), attribute.String("outcome", string(o))))
}
