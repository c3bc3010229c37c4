package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	activatorhandler "knative.dev/serving/pkg/activator/handler"
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

// The reports include the requests of the last seconds, and the activator stops before its drain budget
// runs out.
func TestTheLastReportIsSentAsTheActivatorStops(t *testing.T) {
	server, err := redisconn.Parse(redistest.StartServer(t).Addr, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("LIBRA_REDIS_ADDR", server.String())
	core, logs := observer.New(zap.WarnLevel)
	// The activator's context, which is done only after stop has returned.
	l := startLibra(withDynamic(t.Context()), fake.NewClientset(), "activator-0", noop.NewMeterProvider(), nil, zap.New(core).Sugar())
	if l.manager == nil {
		t.Fatalf("Libra is off: %v", logs.All())
	}

	name := types.NamespacedName{Namespace: "ns", Name: "rev-00001"}
	revision := &v1.Revision{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{api.EnabledLabel: api.EnabledValue},
	}}
	throttler := l.throttler(admitting{})
	handler := l.handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := throttler.Try(r.Context(), name, func(string, bool) error {
			w.WriteHeader(http.StatusOK)
			return nil
		}); err != nil {
			t.Error("Try() =", err)
		}
	}))
	r := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
	began := report.SlotOf(time.Now())
	handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), revision, name)))
	l.stop()

	if late := logs.FilterMessage(unsent).All(); len(late) != 0 {
		t.Errorf("the drain budget ran out: %v", late[0].ContextMap())
	}
	redis := pool.NewRedis(server)
	t.Cleanup(func() {
		if err := redis.Close(); err != nil {
			t.Error(err)
		}
	})
	read, err := redis.ReadReports(redistest.Context(t), []report.Slot{began, report.SlotOf(time.Now())})
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
	if got := counted[name]; got == nil || got[report.Requests] != 1 {
		t.Errorf("the reports say %v, want one request of %s", counted, name)
	}
}
