package invocation

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/pkg/report"
)

// However a request ends, there is one End for its Begin. Only one that succeeded is compared with earlier ones.
func TestEndIsSentOnce(t *testing.T) {
	respond := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for _, tc := range []struct {
		name     string
		function http.HandlerFunc
		status   int // in End
		cut      bool
	}{
		{"success", respond(http.StatusNoContent), http.StatusNoContent, false},
		{"failure", respond(http.StatusInternalServerError), http.StatusInternalServerError, false},
		{"early hints", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusAccepted)
		}, http.StatusAccepted, false},
		{"connection closed before the response", func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, http.StatusBadGateway, false},
		// The proxy panics with http.ErrAbortHandler then.
		{"connection closed within the response", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, http.StatusBadGateway, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec, rev := &recorder{}, newRevision()
			c := newChain(t, chainOptions{pool: rec, rev: rev, function: tc.function})
			for range pastLeast {
				c.manager.counts.of(rev).past.add(0, 1)
			}
			// Where it is cut depends on what the proxy has flushed by then.
			resp, err := c.Client().Get(c.URL)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if (err != nil) != tc.cut {
				t.Errorf("the response ended in %v, want an error: %v", err, tc.cut)
			}
			c.Server.Close()
			drain(t, c.manager.lifecycle)

			if len(rec.begins) != 1 || len(rec.ends) != 1 {
				t.Fatalf("calls = %q, want one Begin and one End", rec.calls)
			}
			if got := rec.ends[0].Status; got != tc.status {
				t.Errorf("End has status %d, want %d", got, tc.status)
			}
			if got := the(t, requests(t, c.manager)); got.Status != tc.status || got.Abandoned {
				t.Errorf("it is kept with status %d, abandoned: %t; want %d", got.Status, got.Abandoned, tc.status)
			}
			if compared := c.manager.counts.drain(learned)[revID][report.Compared] == 1; compared != (tc.status < 400) {
				t.Errorf("it is compared: %t", compared)
			}
		})
	}
}

func TestClientGoesAway(t *testing.T) {
	reached := make(chan struct{})
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec, function: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
	})})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-reached
		cancel()
	}()
	if resp, err := c.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Fatal("the request succeeded, want it cancelled")
	}
	calls := rec.await(t, 2)
	c.Server.Close()
	drain(t, c.manager.lifecycle)
	if len(rec.begins) != 1 || len(rec.ends) != 1 {
		t.Errorf("calls = %q, want one Begin and one End", calls)
	}
}

func TestPanicIsPassedOn(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec})
	req := &request{rev: newRevision(), id: "1", response: &statusWriter{ResponseWriter: httptest.NewRecorder()}}
	ctx := context.WithValue(context.Background(), requestKey{}, req)
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("recovered %v, want http.ErrAbortHandler", p)
			}
		}()
		c.manager.Throttler(oneDest{dest: "127.0.0.1:80"}).Try(ctx, revID, func(string, bool) error { panic(http.ErrAbortHandler) })
	}()
	drain(t, c.manager.lifecycle)
	if len(rec.begins) != 1 || len(rec.ends) != 1 {
		t.Errorf("calls = %q, want one Begin and one End", rec.calls)
	}
}

func TestUpgradedConnection(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{
		pool:        rec,
		predictions: predictions{revID: {Demand: res(300, 100), Duration: time.Second}},
		function: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error("Hijack() =", err)
				return
			}
			defer conn.Close()
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			rw.Flush()
			line, _ := rw.ReadString('\n')
			fmt.Fprint(rw, line)
			rw.Flush()
		}),
	})

	conn, err := net.Dial("tcp", c.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: f\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal("ReadResponse() =", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status = %d, want 101", resp.StatusCode)
	}
	fmt.Fprint(conn, "ping\n")
	if line, err := r.ReadString('\n'); line != "ping\n" {
		t.Errorf("echo = %q, %v, want ping", line, err)
	}
	conn.Close()
	rec.await(t, 2)
	drain(t, c.manager.lifecycle)

	if diff := cmp.Diff(map[string]int64{"connection_upgraded observed": 1}, c.counts(t, "libra.invocations")); diff != "" {
		t.Error("libra.invocations (-want, +got):\n" + diff)
	}
	if c.asked.Load() != 0 {
		t.Error("a prediction was asked for that cannot be used")
	}
	if got := rec.ends[0].Status; got != http.StatusSwitchingProtocols {
		t.Errorf("End has status %d, want 101", got)
	}
}

func TestResponseIsStreamed(t *testing.T) {
	read := make(chan struct{})
	c := newChain(t, chainOptions{pool: &recorder{}, function: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "first\n")
		http.NewResponseController(w).Flush()
		<-read
		io.WriteString(w, "second\n")
	})})
	resp, err := c.Client().Get(c.URL)
	if err != nil {
		t.Fatal("The request failed:", err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	// If this waited for the end of the response, the test would not end.
	if line, err := r.ReadString('\n'); line != "first\n" {
		t.Errorf("read %q, %v, want first", line, err)
	}
	close(read)
	if rest, err := io.ReadAll(r); string(rest) != "second\n" {
		t.Errorf("read %q, %v, want second", rest, err)
	}
	c.Server.Close()
	drain(t, c.manager.lifecycle)
}
