package settings

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/metric"
)

// Meter exports, as a metric of the part of Libra that follows the settings, whether it
// can read all of them.
func (l *Live) Meter(provider metric.MeterProvider) error {
	_, err := provider.Meter("libra.dev/libra/pkg/settings").Int64ObservableGauge("libra.settings.refused",
		metric.WithDescription("1 while anything in the ConfigMap config-libra or the HarvestPolicy libra-system/default is not accepted, else 0"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			var refused int64
			if l.partly.Load() || l.policies.partly.Load() {
				refused = 1
			}
			o.Observe(refused)
			return nil
		}))
	if err != nil {
		return fmt.Errorf("making the metric of refused settings: %w", err)
	}
	return nil
}
