package invocation

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	pkgnet "knative.dev/pkg/network"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	servinghandler "knative.dev/serving/pkg/http/handler"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

// newRevision opted in, keeps the activator in its path, and is owed 1 CPU and 512Mi.
func newRevision() *v1.Revision {
	return &v1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: revID.Namespace, Name: revID.Name,
			Labels:      map[string]string{api.EnabledLabel: api.EnabledValue, serving.ConfigurationLabelKey: "rev"},
			Annotations: map[string]string{autoscaling.TargetBurstCapacityKey: "-1"},
		},
		Spec: v1.RevisionSpec{
			ContainerConcurrency: ptr.To[int64](1),
			PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				Name:      api.UserContainer,
				Resources: corev1.ResourceRequirements{Limits: res(1000, 512).List(), Requests: res(100, 64).List()},
			}}},
		},
	}
}

const testMinLoan = 300 * time.Millisecond

// fixed are settings that are the same for all.
type fixed struct {
	mode      api.Mode
	source    api.Source
	placement api.Placement
	domain    string
}

// full has the settings that LIBRA has.
var full = fixed{mode: api.ModeFull, source: api.SourceOwners}

func (f fixed) For(string) settings.Settings {
	return settings.Settings{Mode: f.mode, MaxMode: api.ModeFull, MinLoan: testMinLoan, SafeguardPercent: 80, Domain: f.domain}
}

func (f fixed) Source(string, string) api.Source { return f.source }
func (f fixed) Placement() api.Placement         { return cmp.Or(f.placement, api.PlacementDefault) }

// predictions answers with the prediction of a revision, for any size.
type predictions map[types.NamespacedName]predict.Prediction

func (p predictions) Predict(_ context.Context, rev types.NamespacedName, _ int64) (predict.Prediction, bool) {
	answer, ok := p[rev]
	return answer, ok
}

func (p predictions) Known(ctx context.Context, rev types.NamespacedName, size int64) (predict.Prediction, bool) {
	return p.Predict(ctx, rev, size)
}

// counted counts how often it is asked.
type counted struct {
	Predictor
	asked *atomic.Int32
}

func (c counted) Predict(ctx context.Context, rev types.NamespacedName, size int64) (predict.Prediction, bool) {
	c.asked.Add(1)
	return c.Predictor.Predict(ctx, rev, size)
}

// oneDest is a throttler that has a slot at dest.
type oneDest struct {
	dest      string
	clusterIP bool
	err       error
	tries     int
}

func (o oneDest) Try(_ context.Context, _ types.NamespacedName, fn func(string, bool) error) error {
	if o.err != nil {
		return o.err
	}
	for range max(o.tries, 1) {
		if err := fn(o.dest, o.clusterIP); err != nil {
			return err
		}
	}
	return nil
}

// chain is the part of the activator that has Libra in it, in front of a function.
type chain struct {
	*httptest.Server
	manager *Manager
	metrics *sdkmetric.ManualReader
	asked   atomic.Int32 // for predictions
}

type chainOptions struct {
	pool        pool.Pool
	function    http.Handler
	rev         *v1.Revision
	predictions predictions
	pods        []podOption // of the function's pod, whose address is the server's
	domain      string
	newPod      bool // no invocation has ended in it
	throttler   oneDest
	timeout     func(*http.Request) time.Duration // until the response begins
	mode        api.Mode
	source      api.Source // owners by default
	events      record.EventRecorder
	placement   api.Placement
	programs    placement.Programs
}

func newChain(t *testing.T, o chainOptions) *chain {
	t.Helper()
	if o.rev == nil {
		o.rev = newRevision()
	}
	if o.function == nil {
		o.function = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	}
	if o.timeout == nil {
		o.timeout = func(*http.Request) time.Duration { return testTimeout }
	}
	function := httptest.NewUnstartedServer(o.function)
	function.Config.Protocols = bothProtocols()
	function.Start()
	t.Cleanup(function.Close)
	o.throttler.dest = strings.TrimPrefix(function.URL, "http://")
	ip, _, err := net.SplitHostPort(o.throttler.dest)
	if err != nil {
		t.Fatal(err)
	}

	logger := zaptest.NewLogger(t).Sugar()
	c := &chain{metrics: sdkmetric.NewManualReader()}
	c.manager, err = NewManager(Options{
		Clock:         clock.RealClock{},
		Logger:        logger,
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.metrics)),
		Pool:          o.pool,
		Predictor:     counted{o.predictions, &c.asked},
		Pods:          runPods(t, newPod("a", ip, o.pods...)),
		Owner:         "owner",
		Settings:      fixed{cmp.Or(o.mode, api.ModeFull), cmp.Or(o.source, api.SourceOwners), o.placement, o.domain},
		Programs:      o.programs,
		Events:        o.events,
	})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	c.manager.lifecycle.beginTimeout, c.manager.lifecycle.lateAfter = testTimeout, testTimeout
	if pod, ok := c.manager.pods.find(ip, revID, api.UserContainer); ok && !o.newPod {
		c.manager.pods.noteServed(pod)
	}

	transport := pkgnet.NewProxyAutoTransport(10, 10)
	var h http.Handler = activatorhandler.New(context.Background(), c.manager.Throttler(o.throttler), transport,
		false, logger, false, nil, nil)
	h = c.manager.Handler(h)
	h = servinghandler.NewTimeoutHandler(h, "timeout", func(r *http.Request) (time.Duration, time.Duration, time.Duration) {
		return testTimeout, o.timeout(r), testTimeout
	}, logger)
	h = activatorhandler.WrapActivatorHandlerWithFullDuplex(h, logger)
	inner := h
	h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), o.rev, revID)))
	})
	h = otelhttp.NewHandler(h, "handle", otelhttp.WithPropagators(propagation.TraceContext{})) // as Knative has it
	c.Server = httptest.NewUnstartedServer(h)
	c.Server.Config.Protocols = bothProtocols()
	c.Server.Start()
	t.Cleanup(c.Server.Close)
	return c
}

// bothProtocols are HTTP/1.1 and, without TLS, HTTP/2.
func bothProtocols() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &p
}

// send returns the status and body of the response.
func (c *chain) send(t *testing.T, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, c.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Client().Do(req)
	if err != nil {
		t.Fatal("The request failed:", err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal("The response was cut off:", err)
	}
	return resp.StatusCode, string(got)
}

// counts returns a counter's values by its attributes, without the revision.
func (c *chain) counts(t *testing.T, counter string) map[string]int64 {
	t.Helper()
	return values[int64](t, c.metrics, counter)
}

// volumes is counts for a counter of volumes.
func (c *chain) volumes(t *testing.T, counter string) map[string]float64 {
	t.Helper()
	return values[float64](t, c.metrics, counter)
}

func values[N int64 | float64](t *testing.T, metrics sdkmetric.Reader, counter string) map[string]N {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := metrics.Collect(context.Background(), &all); err != nil {
		t.Fatal("Collect() =", err)
	}
	got := map[string]N{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[N]); ok && m.Name == counter {
				for _, p := range sum.DataPoints {
					var labels []string
					for _, kv := range p.Attributes.ToSlice() {
						if !strings.HasPrefix(string(kv.Key), "k8s.") && !strings.HasPrefix(string(kv.Key), "kn.") {
							labels = append(labels, kv.Value.String())
						}
					}
					got[strings.Join(labels, " ")] += p.Value
				}
			}
		}
	}
	return got
}
