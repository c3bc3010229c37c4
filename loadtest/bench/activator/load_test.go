package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"knative.dev/serving/pkg/activator"
)

// serve answers with status, and counts the requests that look like the ingress's.
func serve(t *testing.T, status func(n int64) int) (target, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "bench.test" || r.Header.Get(activator.RevisionHeaderName) != "rev-1" || r.Header.Get(activator.RevisionHeaderNamespace) != "default" {
			t.Errorf("request for %s with headers %v", r.Host, r.Header)
		}
		w.WriteHeader(status(asked.Add(1)))
	}))
	t.Cleanup(server.Close)
	return target{addr: server.Listener.Addr().String(), request: requestTo("rev-1", "bench.test")}, &asked
}

func ok(int64) int { return http.StatusOK }

func TestPacedSendsWhatIsDue(t *testing.T) {
	for _, connections := range []int{1, 3, 7} {
		to, asked := serve(t, ok)
		o, err := paced(t.Context(), to, connections, 200, 100*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.latencies) != 20 || asked.Load() != 20 || o.failed != 0 {
			t.Errorf("on %d connections: %d answered, %d asked, %d failed of 200/s for 0.1 s", connections, len(o.latencies), asked.Load(), o.failed)
		}
	}
}

// A server that answers one request at a time makes the next ones wait, and their
// wait counts.
func TestPacedCountsFromWhenARequestIsDue(t *testing.T) {
	const slow = 50 * time.Millisecond
	to, _ := serve(t, func(n int64) int {
		if n == 1 {
			time.Sleep(slow)
		}
		return http.StatusOK
	})
	o, err := paced(t.Context(), to, 1, 100, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.latencies) != 2 {
		t.Fatalf("%d requests, not 2", len(o.latencies))
	}
	if second := o.latencies[1]; second < 35 {
		t.Errorf("the second request was due after 10 ms of the 50 that the first took; it counts %.1f ms", second)
	}
}

func TestClosedKeepsItsConnectionsBusy(t *testing.T) {
	to, asked := serve(t, ok)
	o, err := closed(t.Context(), to, 4, time.Second/2)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(o.latencies)) != asked.Load() || len(o.latencies) < 4 {
		t.Errorf("%d answered of %d asked", len(o.latencies), asked.Load())
	}
	if o.length < time.Second/2 {
		t.Errorf("it took %v", o.length)
	}
}

func TestFailuresAreCountedAndTheRestGoesOn(t *testing.T) {
	to, _ := serve(t, func(n int64) int {
		if n%2 == 0 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	o, err := paced(t.Context(), to, 1, 200, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.latencies) != 5 || o.failed != 5 || o.failure == nil || !strings.Contains(o.failure.Error(), "503") {
		t.Errorf("%d answered, %d failed, %v", len(o.latencies), o.failed, o.failure)
	}
}

func TestFcalls(t *testing.T) {
	for text, want := range map[string]int64{
		"": 0,
		"# Commandstats\r\ncmdstat_fcall:calls=12,usec=5,usec_per_call=1\r\ncmdstat_ping:calls=3,usec=1\r\n": 12,
		"cmdstat_ping:calls=3,usec=1\r\n": 0,
	} {
		if got, err := fcalls(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	if _, err := fcalls("cmdstat_fcall:calls=x,"); err == nil {
		t.Error("no error of what is no number")
	}
}
