package dashboards

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/promql/parser"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"libra.dev/libra/activator-plugin/forward"
	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/activator-plugin/queue"
	"libra.dev/libra/pkg/settings"
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

func (m touchedMeter) Int64UpDownCounter(name string, options ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	c, err := m.Meter.Int64UpDownCounter(name, options...)
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

func (m touchedMeter) Float64ObservableGauge(name string, options ...metric.Float64ObservableGaugeOption) (metric.Float64ObservableGauge, error) {
	one := metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error { o.Observe(0); return nil })
	return m.Meter.Float64ObservableGauge(name, append(options, one)...)
}

func (m touchedMeter) Int64ObservableCounter(name string, options ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	one := metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error { o.Observe(0); return nil })
	return m.Meter.Int64ObservableCounter(name, append(options, one)...)
}

// exported returns the metrics that Libra's parts export for Prometheus, except for those that only sources tell here.
func exported(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	provider := touched{sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))}
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	if _, err := controller.New(clk, nil, nil, nil, nil, nil, provider, noop.NewTracerProvider(), controller.Settings{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := agent.New(clk, nil, nil, nil, agent.Settings{CgroupRoot: t.TempDir()}, agent.Redis{}, provider, noop.NewTracerProvider()); err != nil {
		t.Fatal(err)
	}
	if _, err := invocation.NewManager(invocation.Options{Clock: clk, Logger: zap.NewNop().Sugar(), MeterProvider: provider}); err != nil {
		t.Fatal(err)
	}
	if _, err := queue.New(queue.Options{Clock: clk, MeterProvider: provider}); err != nil {
		t.Fatal(err)
	}
	if _, err := placement.NewPicture(placement.PictureOptions{Clock: clk, Logger: zap.NewNop().Sugar(), MeterProvider: provider}); err != nil {
		t.Fatal(err)
	}
	if _, err := tapp.NewPolicies(tapp.PoliciesOptions{
		Kube: fake.NewClientset(), Dynamic: dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), Clock: clk, Logger: zap.NewNop().Sugar(), MeterProvider: provider,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := forward.NewHandler(nil, forward.Options{Clock: clk, MeterProvider: provider, TracerProvider: noop.NewTracerProvider()}); err != nil {
		t.Fatal(err)
	}
	client, err := predict.New(predict.Options{URL: "http://localhost", Clock: clk, Logger: zap.NewNop().Sugar(), MeterProvider: provider})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	live, err := settings.NewLive(fake.NewClientset(), nil, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := live.Meter(provider); err != nil {
		t.Fatal(err)
	}
	families, err := prometheus.Gatherers{registry, ctrlmetrics.Registry}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// family is one metric, by its name in Prometheus.
type family struct {
	name, kind, help string
}

// families returns all metrics that Libra's parts export.
func families(t *testing.T) []family {
	t.Helper()
	all := append(predictorMetrics(t), counters(t, "../activator-plugin/placement/scheduler/metrics.go")...)
	all = append(all, counters(t, "../activator-plugin/duplicator/metrics.go")...)
	for _, f := range exported(t) {
		all = append(all, family{f.GetName(), strings.ToLower(f.GetType().String()), f.GetHelp()})
	}
	slices.SortFunc(all, func(a, b family) int { return strings.Compare(a.name, b.name) })
	return all
}

// series returns the names that queries have for the metrics.
func series(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{
		"up":                            true, // Prometheus' own, of each target
		"leader_election_master_status": true, // controller-runtime's, once a resizer takes part in the election
	}
	for _, f := range families(t) {
		names[f.name] = true
		if f.kind == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[f.name+suffix] = true
			}
		}
	}
	return names
}

var (
	instrument  = regexp.MustCompile(`create_(?:observable_)?(counter|gauge|histogram)\(\s*"([a-z._]+)"`)
	inSeconds   = regexp.MustCompile(`unit="s"`)
	description = regexp.MustCompile(`description="([^"]*)"`)
)

// predictorMetrics reads the predictor's instruments in its source.
func predictorMetrics(t *testing.T) []family {
	t.Helper()
	sources, err := filepath.Glob("../predictor/libra_predictor/*.py")
	if err != nil || len(sources) == 0 {
		t.Fatalf("the predictor's source: %d files, %v", len(sources), err)
	}
	var all []family
	for _, path := range sources {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		calls := strings.Split(string(data), "create_")
		for _, call := range calls[1:] {
			match := instrument.FindStringSubmatch("create_" + call)
			if match == nil {
				continue
			}
			name := strings.ReplaceAll(match[2], ".", "_")
			arguments, _, _ := strings.Cut(call, "\n)")
			if inSeconds.MatchString(arguments) {
				name += "_seconds"
			}
			if match[1] == "counter" {
				name += "_total"
			}
			says := description.FindStringSubmatch(arguments)
			if says == nil {
				t.Fatalf("%s: %s has no description", path, name)
			}
			all = append(all, family{name, match[1], strings.TrimSuffix(says[1], ".")})
		}
	}
	return all
}

// counters reads the instruments in a source, all of which must be counters. It is for the scheduler, which is a
// module of its own, and the duplicator, which needs a cluster.
func counters(t *testing.T, path string) []family {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []family
	for _, match := range regexp.MustCompile(`meter\.(\w+)\("([a-z._]+)",\s*metric\.WithDescription\("([^"]*)"\)`).FindAllStringSubmatch(string(data), -1) {
		if match[1] != "Int64Counter" {
			t.Fatalf("%s: %s is a %s, want an Int64Counter", path, match[2], match[1])
		}
		all = append(all, family{strings.ReplaceAll(match[2], ".", "_") + "_total", "counter", match[3]})
	}
	if len(all) == 0 {
		t.Fatalf("%s has no metrics", path)
	}
	return all
}

// allQueries returns the queries of the dashboards and the rules, with some value for each variable.
func allQueries(t *testing.T) map[string]string {
	t.Helper()
	variables := map[string]string{
		"__rate_interval": "1m", "__range": "1h", "__interval": "1m",
		"namespace": "default", "revision": "thumb-00001", "node": ".+",
	}
	queries := map[string]string{}
	dashboards, err := Dashboards()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dashboards {
		for _, q := range d.Queries() {
			queries[q.Where] = q.Fill(variables)
		}
		for _, v := range d.Templating.List {
			if selector, _, ok := v.LabelValues(); ok {
				queries[d.Title+", "+selector.Where] = selector.Fill(variables)
			}
		}
	}
	groups, err := Groups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			queries[r.Query().Where] = r.Expr
		}
	}
	if len(queries) < 50 {
		t.Fatalf("only %d queries were found", len(queries))
	}
	return queries
}

// A panel or an alert on a metric that does not exist stays empty for ever.
func TestQueriesNameMetricsThatAreExported(t *testing.T) {
	known := series(t)
	groups, err := Groups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			known[r.Record] = true
		}
	}
	checkDocumented(t, known)
	for where, query := range allQueries(t) {
		expr, err := parser.ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v in %s", where, err, query)
			continue
		}
		for name := range metricsIn(expr) {
			if !known[name] {
				t.Errorf("%s is on %q, which no part exports", where, name)
			}
		}
	}
}

func metricsIn(expr parser.Expr) map[string]bool {
	names := map[string]bool{}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			names[selector.Name] = true
		}
		return nil
	})
	return names
}

var documentedMetric = regexp.MustCompile("[` (]libra_(?:agent|invocations|placement|pool|predict|predictor|queue|resizer)_[a-z_]+[a-z][`{]")

// checkDocumented finds metrics on pages that no part exports.
func checkDocumented(t *testing.T, known map[string]bool) {
	t.Helper()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := 0
	for _, path := range pages {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range documentedMetric.FindAllString(string(data), -1) {
			name = strings.Trim(name, "`{ (")
			if documented++; !known[name] && !known[name+"_count"] {
				t.Errorf("%s names %s, which no part exports", path, name)
			}
		}
	}
	if documented == 0 {
		t.Error("no page names a metric")
	}
}
