package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"libra.dev/libra/pkg/api"
)

func TestLibraConfigDefaults(t *testing.T) {
	cfg, err := libraConfigFromEnv()
	if err != nil {
		t.Fatal("libraConfigFromEnv() =", err)
	}
	if cfg.duplicator.on {
		t.Error("the duplicator is on")
	}
	if want := (api.Resources{CPUMilli: 2000, MemoryBytes: 1 << 30}); cfg.duplicator.largest != want {
		t.Errorf("largest = %v, want %v", cfg.duplicator.largest, want)
	}
}

func TestLibraConfigTakesEachFormOfAddress(t *testing.T) {
	t.Setenv("LIBRA_REDIS_CREDENTIALS", t.TempDir())
	for _, address := range []string{
		"redis-0.redis:6379,redis-1.redis:6379,[fd00::7]:6379", "rediss://redis:6379", "redis-sentinel://sentinel:26379/libra",
	} {
		t.Setenv("LIBRA_REDIS_ADDR", address)
		if cfg, err := libraConfigFromEnv(); err != nil || cfg.redis.String() != address {
			t.Errorf("libraConfigFromEnv() has %v, %v, want %s", cfg.redis, err, address)
		}
	}
}

func TestLibraConfigNamesWhatIsWrong(t *testing.T) {
	for _, tc := range []struct{ variable, value, want string }{
		{"LIBRA_REDIS_ADDR", "redis", "want HOST:PORT"},
		{"LIBRA_REDIS_ADDR", "redis-0:6379,redis-1", "want HOST:PORT"},
		{"LIBRA_REDIS_ADDR", "redis-0:6379, redis-1:6379", "want HOST:PORT"},
		{"LIBRA_REDIS_ADDR", "redis-0:6379,", "want HOST:PORT"},
		{"LIBRA_REDIS_CREDENTIALS", "/none", "want a folder"},
		{"LIBRA_PREDICTOR_URL", "predictor:80", "want http://HOST[:PORT]"},
		{"LIBRA_DUPLICATOR", "perhaps", "want true or false"},
		{"LIBRA_DUPLICATOR_CPU", "0", "want an amount of CPU"},
		{"LIBRA_DUPLICATOR_MEMORY", "1 GB", "want an amount of memory"},
	} {
		t.Run(tc.variable+"="+tc.value, func(t *testing.T) {
			t.Setenv(tc.variable, tc.value)
			_, err := libraConfigFromEnv()
			if err == nil || !strings.Contains(err.Error(), tc.variable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("libraConfigFromEnv() = %v, want an error with %s and %q", err, tc.variable, tc.want)
			}
		})
	}
}

func TestBadSettingsLeaveStock(t *testing.T) {
	t.Setenv("LIBRA_PREDICTOR_URL", "predictor")
	l := startLibra(t.Context(), fake.NewClientset(), "activator-0", noop.NewMeterProvider(), nil, zaptest.NewLogger(t).Sugar())
	defer l.stop()

	resp := httptest.NewRecorder()
	// Without the revision in its context, Libra's handler would panic.
	l.handler(http.NotFoundHandler()).ServeHTTP(resp, httptest.NewRequest(http.MethodGet, "http://example.com", nil))
	if resp.Code != http.StatusNotFound {
		t.Errorf("status = %d, want 404", resp.Code)
	}
	if got := l.throttler(nil); got != nil {
		t.Errorf("throttler = %v, want Knative's own", got)
	}
}

// Nothing reads what it no longer needs, nor fails to, while the activator shuts down the rest.
func TestStopEndsWhatFollowsTheCluster(t *testing.T) {
	kube := fake.NewClientset()
	pods := watch.NewFake()
	kube.PrependWatchReactor("pods", clienttesting.DefaultWatchReactor(pods, nil))
	l := startLibra(withDynamic(t.Context()), kube, "activator-0", noop.NewMeterProvider(), nil, zaptest.NewLogger(t).Sugar())
	if l.manager == nil {
		t.Fatal("Libra is off")
	}
	l.stop()
	stopped := time.Now()
	for !pods.IsStopped() {
		if time.Since(stopped) > shutdownTimeout {
			t.Fatal("pods are still watched")
		}
		time.Sleep(time.Millisecond)
	}
}
