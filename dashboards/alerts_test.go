// Package dashboards_test checks the alerts against the metrics that there are.
package dashboards_test

import (
	"context"
	"os"
	"regexp"
	"testing"
	"time"

	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/agent"
	"libra.dev/libra/resizer/controller"
)

// touched is a provider whose instruments are exported from the start. Others appear
// only when something is first recorded.
type touched struct{ metric.MeterProvider }

func (p touched) Meter(name string, options ...metric.MeterOption) metric.Meter {
	return touchedMeter{p.MeterProvider.Meter(name, options...)}
}

type touchedMeter struct{ metric.Meter }

func (m touchedMeter) Int64Counter(name string, options ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	c, err := m.Meter.Int64Counter(name, options...)
	c.Add(context.Background(), 0)
	return c, err
}

func (m touchedMeter) Float64Counter(name string, options ...metric.Float64CounterOption) (metric.Float64Counter, error) {
	c, err := m.Meter.Float64Counter(name, options...)
	c.Add(context.Background(), 0)
	return c, err
}

func (m touchedMeter) Int64Gauge(name string, options ...metric.Int64GaugeOption) (metric.Int64Gauge, error) {
	g, err := m.Meter.Int64Gauge(name, options...)
	g.Record(context.Background(), 0)
	return g, err
}

func (m touchedMeter) Float64Histogram(name string, options ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	h, err := m.Meter.Float64Histogram(name, options...)
	h.Record(context.Background(), 0)
	return h, err
}

func (m touchedMeter) Int64ObservableGauge(name string, options ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	one := metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error { o.Observe(0); return nil })
	return m.Meter.Int64ObservableGauge(name, append(options, one)...)
}

// An alert on a metric that does not exist never fires.
func TestAlertsNameMetricsThatAreExported(t *testing.T) {
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(ctrlmetrics.Registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := touched{sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))}
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	if _, err := controller.New(clk, nil, nil, nil, actuate.NewAPI(nil), nil, provider, controller.Settings{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := agent.New(clk, nil, agent.Settings{CgroupRoot: t.TempDir()}, agent.Redis{}, provider); err != nil {
		t.Fatal(err)
	}
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]bool{}
	for _, f := range families {
		exported[f.GetName()] = true
	}

	raw, err := os.ReadFile("rules/safety.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(raw, &rules); err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			for _, name := range regexp.MustCompile(`libra_\w+`).FindAllString(r.Expr, -1) {
				named++
				if !exported[name] {
					t.Errorf("alert %s is on %s, which neither the agent nor the controller exports", r.Alert, name)
				}
			}
		}
	}
	if named == 0 {
		t.Error("no alert names a metric of Libra's")
	}
}
