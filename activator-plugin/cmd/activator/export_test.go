package main

import (
	"context"
	"io"
	"net"
	"net/http"
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
