package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/report"
)

// admitting is a throttler with a slot for each request, in a pod about which nothing is known.
type admitting struct{}

func (admitting) Try(_ context.Context, _ types.NamespacedName, fn func(dest string, isClusterIP bool) error) error {
	return fn("10.0.0.1:8012", false)
}

// reported returns how many requests of a function activators have reported since a slot.
func reported(t *testing.T, server redisconn.Server, since report.Slot, function types.NamespacedName) int64 {
	t.Helper()
	redis := pool.NewRedis(server)
	defer redis.Close()
	read, err := redis.ReadReports(redistest.Context(t), []report.Slot{since, report.SlotOf(time.Now())})
	if err != nil {
		t.Fatal(err)
	}
	counted := report.Record{}
	for _, writers := range read {
		for writer, encoded := range writers {
			if err := report.Decode([]byte(encoded), counted); err != nil {
				t.Fatal(writer, err)
			}
		}
	}
	if counted[function] == nil {
		return 0
	}
	return counted[function][report.Requests]
}

// The reports include the requests of the last seconds, and do not wait for an upgraded connection, which may stay open for
// as long as the drain lasts.
func TestTheLastReportIsSentAsTheActivatorStops(t *testing.T) {
	server, err := redisconn.Parse(redistest.StartServer(t).Addr, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LIBRA_REDIS_ADDR", server.String())
	core, logs := observer.New(zap.WarnLevel)
	name := types.NamespacedName{Namespace: "ns", Name: "rev-00001"}
	kube := fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: "a", Labels: map[string]string{
			api.EnabledLabel: api.EnabledValue, serving.RevisionLabelKey: name.Name,
		}},
		Spec: corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	})
	metrics := sdkmetric.NewManualReader()
	// The activator's context, which is done only after stop has returned.
	l := startLibra(withDynamic(t.Context()), kube, "activator-0", sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics)), nil, zap.New(core).Sugar())
	if l.manager == nil {
		t.Fatalf("Libra is off: %v", logs.All())
	}

	revision := &v1.Revision{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{api.EnabledLabel: api.EnabledValue},
	}}
	throttler := l.throttler(admitting{})
	open, closed := make(chan struct{}), make(chan struct{})
	handler := l.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := throttler.Try(r.Context(), name, func(string, bool) error {
			if api.AsksForUpgrade(r.Header) {
				close(open)
				<-closed
			}
			w.WriteHeader(http.StatusOK)
			return nil
		}); err != nil {
			t.Error("Try() =", err)
		}
	}))
	send := func(r *http.Request) {
		handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), revision, name)))
	}
	began := report.SlotOf(time.Now())
	upgraded := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
	upgraded.Header.Set("Connection", "Upgrade")
	upgraded.Header.Set("Upgrade", "websocket")
	var running sync.WaitGroup
	running.Go(func() { send(upgraded) })
	<-open
	if n := inFlight(t, metrics); n != 1 {
		t.Fatalf("%d invocations are in flight, want the upgraded one", n)
	}
	send(httptest.NewRequest(http.MethodGet, "http://example.com", nil))

	stopping := time.Now()
	running.Go(l.stop)
	for reported(t, server, began, name) != 2 { // that have begun
		if time.Since(stopping) > shutdownTimeout/3 {
			t.Error("the last report waits for the upgraded connection")
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	close(closed)
	running.Wait()
}

// inFlight returns how many invocations are in flight.
func inFlight(t *testing.T, metrics sdkmetric.Reader) (n int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := metrics.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "libra.invocations.in_flight" {
				n += sum.DataPoints[0].Value
			}
		}
	}
	return n
}
