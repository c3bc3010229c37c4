package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"knative.dev/pkg/injection"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	asmetrics "knative.dev/serving/pkg/autoscaler/metrics"
	_ "knative.dev/serving/pkg/client/injection/informers/serving/v1/revision/fake"
)

// sent counts what is sent to the autoscaler.
type sent struct{ atomic.Int32 }

func (s *sent) SendRaw(int, []byte) error {
	s.Add(1)
	return nil
}

// After its last request, the activator takes seconds to end, until Libra's Ends are
// sent.
func TestStatisticsEndBeforeTheirChannelDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ctx, _ = injection.Fake.SetupInformers(ctx, nil)
		stats := make(chan []asmetrics.StatMessage)
		reporter := activatorhandler.NewConcurrencyReporter(ctx, "activator-0", stats, noop.NewMeterProvider())
		autoscaler := &sent{}
		stop := startStats(stats, reporter.Run, autoscaler, zap.NewNop().Sugar())

		r := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
		r = r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), nil, types.NamespacedName{Namespace: "ns", Name: "rev"}))
		reporter.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		synctest.Wait()
		if autoscaler.Load() != 1 {
			t.Errorf("%d messages were sent after the first request, want 1", autoscaler.Load())
		}
		stop()
		time.Sleep(shutdownTimeout)
	})
}
