package agent

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Prometheus appends units to names, except those in braces: only seconds and bytes
// may show there. What alerts watch exists from the start.
func TestMetricNames(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m, err := newMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	if err != nil {
		t.Fatal(err)
	}
	collect := func() map[string]string {
		var data metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		units := map[string]string{}
		for _, scope := range data.ScopeMetrics {
			for _, metric := range scope.Metrics {
				units[metric.Name] = metric.Unit
			}
		}
		return units
	}
	units := collect()
	for _, name := range []string{"libra.agent.journal.errors", "libra.agent.invariant.violations", "libra.agent.open"} {
		if _, ok := units[name]; !ok {
			t.Errorf("%s is not there from the start", name)
		}
	}
	m.opened(t.Context(), true)
	for _, c := range []metric.Float64Counter{m.lentCPU, m.borrowedCPU, m.availableCPU} {
		coreSeconds(t.Context(), c, 1, 1)
	}
	for _, c := range []metric.Float64Counter{m.borrowedMem, m.availableMem} {
		byteSeconds(t.Context(), c, 1, 1)
	}
	for name, unit := range collect() {
		if unit != "" && unit != "s" && unit != "By" && !strings.Contains(unit, "{") || strings.Contains(unit, ".") {
			t.Errorf("%s has unit %q, of which Prometheus makes a part of its name", name, unit)
		}
	}
}
