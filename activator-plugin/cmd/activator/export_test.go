package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestLibrasMetricsAreServedByThemselves(t *testing.T) {
	t.Setenv(metricsAddrEnv, "127.0.0.1:0")
	e := startExport(zap.NewNop().Sugar())
	t.Cleanup(func() {
		if err := e.stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	counter, err := e.provider.Meter("").Int64Counter("libra.counted")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(t.Context(), 3)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nlibra_counted_total 3\n", "\nprocess_cpu_seconds_total ", "\nprocess_resident_memory_bytes "} {
		if !strings.Contains(string(body), want) {
			t.Errorf("%q is not in the metrics:\n%s", want, body)
		}
	}
}

func TestMetricsThatNobodySeesStopNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, address := range []string{taken.Addr().String(), "9095", "nowhere:port"} {
		t.Setenv(metricsAddrEnv, address)
		e := startExport(zap.NewNop().Sugar())
		if e.address != "" {
			t.Errorf("%s is said to be listened on", address)
		}
		counter, err := e.provider.Meter("").Int64Counter("libra.counted")
		if err != nil {
			t.Fatal(err)
		}
		counter.Add(t.Context(), 1)
		if err := e.stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// Those who may forward a port to the pod can read requests. Others who reach the pod cannot.
func TestRequestsAreToldAtLoopbackAlone(t *testing.T) {
	t.Setenv(metricsAddrEnv, "127.0.0.1:0")
	e := startExport(zap.NewNop().Sugar())
	t.Cleanup(func() {
		if err := e.stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	e.tell(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for at, want := range map[string]int{"127.0.0.1": http.StatusTeapot, "::1": http.StatusTeapot, "10.0.0.7": http.StatusForbidden, "fd00::7": http.StatusForbidden, "": http.StatusForbidden} {
		ctx := t.Context()
		if at != "" {
			ctx = context.WithValue(ctx, http.LocalAddrContextKey, &net.TCPAddr{IP: net.ParseIP(at), Port: 9095})
		}
		w := httptest.NewRecorder()
		e.mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/requests", nil))
		if w.Code != want {
			t.Errorf("at %q the status is %d, want %d", at, w.Code, want)
		}
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(httptest.NewRequest(http.MethodGet, "http://"+e.address+"/requests", nil))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusTeapot {
		t.Errorf("over a connection the status is %d, want %d", response.StatusCode, http.StatusTeapot)
	}
}
