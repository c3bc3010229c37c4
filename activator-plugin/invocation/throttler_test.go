package invocation

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	pkgnet "knative.dev/pkg/network"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	servinghandler "knative.dev/serving/pkg/http/handler"
	"knative.dev/serving/pkg/queue"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// newRevision opted in, and is owed 1 CPU and 512Mi.
func newRevision() *v1.Revision {
	return &v1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: revID.Namespace, Name: revID.Name,
			Labels:      map[string]string{api.EnabledLabel: api.EnabledValue, serving.ConfigurationLabelKey: "rev"},
			Annotations: map[string]string{},
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

// predictions answers with the prediction of a revision, for any size.
type predictions map[types.NamespacedName]predict.Prediction

func (p predictions) Predict(_ context.Context, rev types.NamespacedName, _ int64) (predict.Prediction, bool) {
	answer, ok := p[rev]
	return answer, ok
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

// chain is the part of the activator that Libra is in, before a function.
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
	throttler   oneDest
}

func newChain(t *testing.T, o chainOptions) *chain {
	t.Helper()
	if o.rev == nil {
		o.rev = newRevision()
	}
	if o.function == nil {
		o.function = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	}
	function := httptest.NewServer(o.function)
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
		MinLoan:       300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal("NewManager() =", err)
	}
	c.manager.lifecycle.beginTimeout, c.manager.lifecycle.lateAfter = testTimeout, testTimeout

	transport := pkgnet.NewProxyAutoTransport(10, 10)
	var h http.Handler = activatorhandler.New(context.Background(), c.manager.Throttler(o.throttler), transport,
		false, logger, false, nil, nil)
	h = c.manager.Handler(h)
	h = servinghandler.NewTimeoutHandler(h, "timeout", func(*http.Request) (time.Duration, time.Duration, time.Duration) {
		return testTimeout, testTimeout, testTimeout
	}, logger)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), o.rev, revID)))
	}))
	t.Cleanup(c.Server.Close)
	return c
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
	var all metricdata.ResourceMetrics
	if err := c.metrics.Collect(context.Background(), &all); err != nil {
		t.Fatal("Collect() =", err)
	}
	counts := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == counter {
				for _, p := range sum.DataPoints {
					var labels []string
					for _, kv := range p.Attributes.ToSlice() {
						if !strings.HasPrefix(string(kv.Key), "k") {
							labels = append(labels, kv.Value.String())
						}
					}
					counts[strings.Join(labels, " ")] += p.Value
				}
			}
		}
	}
	return counts
}

func TestRequestIsBegunAndEnded(t *testing.T) {
	rec := &recorder{}
	prediction := predict.Prediction{Demand: res(300, 600), Duration: 2 * time.Second}
	c := newChain(t, chainOptions{pool: rec, predictions: predictions{revID: prediction}})

	status, body := c.send(t, "hello", "X-Request-Id", "client-1")
	if status != http.StatusOK || body != "hello" {
		t.Errorf("response = %d %q, want 200 and the request's body", status, body)
	}
	drain(t, c.manager.lifecycle)

	id := rec.begins[0].ID
	if ofClient(id) != "client-1" {
		t.Errorf("ID = %q, want client-1.SUFFIX", id)
	}
	if diff := cmp.Diff([]pool.Invocation{{
		ID: id, Function: "ns/rev-00001", Configuration: "ns/rev", Pod: "ns/a", Domain: "ns", Owner: "owner", Size: 5,
		Predicted: res(300, 600), Duration: 2 * time.Second,
		Surplus: res(600, 0), Want: res(0, 88), MinRemaining: 300 * time.Millisecond,
	}}, rec.begins); diff != "" {
		t.Error("Begin (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff([]pool.Ending{{ID: id, Status: 200}}, rec.ends, cmpopts.IgnoreFields(pool.Ending{}, "Duration")); diff != "" {
		t.Error("End (-want, +got):\n" + diff)
	}
	if rec.ends[0].Duration <= 0 {
		t.Errorf("Duration = %v, want more than 0", rec.ends[0].Duration)
	}
	if diff := cmp.Diff(map[string]int64{"donor_and_borrower": 1}, c.counts(t, "libra.invocations")); diff != "" {
		t.Error("libra.invocations (-want, +got):\n" + diff)
	}
}

func TestRevisionWithoutConfiguration(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	delete(rev.Labels, serving.ConfigurationLabelKey)
	c := newChain(t, chainOptions{pool: rec, rev: rev})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if got := rec.begins[0].Configuration; got != "" {
		t.Errorf("Configuration = %q, want none", got)
	}
}

func TestCopyIsOnlyObserved(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	rev.Labels[serving.ConfigurationLabelKey] = "original-00001-libra-copy"
	rev.Labels[api.CopyOfLabel] = "original-00001"
	rev.Annotations[api.CopyOfConfigurationAnnotation] = "original"
	c := newChain(t, chainOptions{pool: rec, rev: rev, predictions: predictions{
		revID: {Demand: res(300, 100), Duration: time.Minute},
		{Namespace: "ns", Name: "original-00001"}: {Demand: res(300, 100), Duration: time.Minute},
	}})
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)
	if diff := cmp.Diff([]pool.Invocation{{
		Function: "ns/original-00001", Configuration: "ns/original", Pod: "ns/a", Domain: "ns", Owner: "owner", Size: 5,
		MinRemaining: 300 * time.Millisecond,
	}}, rec.begins, cmpopts.IgnoreFields(pool.Invocation{}, "ID")); diff != "" {
		t.Error("Begin (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff(map[string]int64{"copy observed": 1}, c.counts(t, "libra.invocations")); diff != "" {
		t.Error("libra.invocations (-want, +got):\n" + diff)
	}
	if c.asked.Load() != 0 {
		t.Error("a prediction was asked for that cannot be used")
	}
}

func TestRoles(t *testing.T) {
	donor := predictions{revID: {Demand: res(300, 100), Duration: time.Second}}
	revision := func(change func(*v1.Revision)) *v1.Revision {
		rev := newRevision()
		change(rev)
		return rev
	}
	for _, tc := range []struct {
		name    string
		options chainOptions
		headers []string
		count   string // of libra.invocations; "" for none
		surplus api.Resources
		begun   bool
		asked   bool // for a prediction, which may take time
	}{
		{name: "not opted in", count: "", options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Labels[api.EnabledLabel] = "false" })}},
		{name: "donor", count: "donor", surplus: res(600, 384), begun: true, asked: true, options: chainOptions{predictions: donor}},
		{name: "nothing to lend or borrow", count: "neither", begun: true, asked: true, options: chainOptions{
			predictions: predictions{revID: {Demand: res(1000, 512), Duration: time.Second}}}},
		{name: "no prediction", count: "no_prediction observed", begun: true, asked: true},
		{name: "several at a time", count: "concurrency observed", begun: true, options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Spec.ContainerConcurrency = ptr.To[int64](2) })}},
		{name: "any number at a time", count: "concurrency observed", begun: true, options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Spec.ContainerConcurrency = nil })}},
		{name: "queue-proxy with limits", count: "queue_proxy_limits observed", begun: true, options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(100, 0).List() }}}},
		{name: "no limits", count: "no_limits observed", begun: true, options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = nil }}}},
		{name: "unnamed container", count: "donor", surplus: res(600, 384), begun: true, asked: true, options: chainOptions{predictions: donor,
			rev: revision(func(r *v1.Revision) { r.Spec.Containers[0].Name = "" })}},
		{name: "pod not known", count: "pod_unknown unmanaged", options: chainOptions{predictions: donor,
			pods: []podOption{func(p *corev1.Pod) { p.Status.PodIPs = nil }}}},
		{name: "ClusterIP", count: "cluster_ip unmanaged", options: chainOptions{predictions: donor,
			throttler: oneDest{clusterIP: true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &recorder{}
			tc.options.pool = rec
			c := newChain(t, tc.options)
			if status, _ := c.send(t, "hello"); status != http.StatusOK {
				t.Errorf("status = %d, want 200", status)
			}
			drain(t, c.manager.lifecycle)

			want := map[string]int64{}
			if tc.count != "" {
				want[tc.count] = 1
			}
			if diff := cmp.Diff(want, c.counts(t, "libra.invocations")); diff != "" {
				t.Error("libra.invocations (-want, +got):\n" + diff)
			}
			if asked := c.asked.Load() == 1; asked != tc.asked {
				t.Errorf("asked for a prediction: %v, want %v", asked, tc.asked)
			}
			if begun := len(rec.begins) == 1; begun != tc.begun {
				t.Fatalf("calls = %q, want it begun: %v", rec.calls, tc.begun)
			}
			if !tc.begun {
				return
			}
			if diff := cmp.Diff(tc.surplus, rec.begins[0].Surplus); diff != "" || !rec.begins[0].Want.IsZero() {
				t.Errorf("Begin wants %v; surplus (-want, +got):\n%s", rec.begins[0].Want, diff)
			}
		})
	}
}

// However a request ends, there is one End for its Begin.
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
		}, http.StatusOK, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &recorder{}
			c := newChain(t, chainOptions{pool: rec, function: tc.function})
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

func TestErrorsOfTry(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status int
	}{
		{context.DeadlineExceeded, http.StatusServiceUnavailable},
		{queue.ErrRequestQueueFull, http.StatusServiceUnavailable},
		{errors.New("no such revision"), http.StatusInternalServerError},
	} {
		t.Run(tc.err.Error(), func(t *testing.T) {
			rec := &recorder{}
			c := newChain(t, chainOptions{pool: rec, throttler: oneDest{err: tc.err}})
			if status, _ := c.send(t, ""); status != tc.status {
				t.Errorf("status = %d, want %d", status, tc.status)
			}
			drain(t, c.manager.lifecycle)
			if len(rec.calls) != 0 {
				t.Errorf("calls = %q, want none", rec.calls)
			}
		})
	}
}

func TestAnotherAttemptIsAnotherInvocation(t *testing.T) {
	rec := &recorder{}
	c := newChain(t, chainOptions{pool: rec})
	req := &request{rev: newRevision(), id: "client-1", response: &statusWriter{ResponseWriter: httptest.NewRecorder()}}
	ctx := context.WithValue(context.Background(), requestKey{}, req)
	err := c.manager.Throttler(oneDest{dest: "127.0.0.1:80", tries: 2}).Try(ctx, revID, func(string, bool) error { return nil })
	if err != nil {
		t.Fatal("Try() =", err)
	}
	drain(t, c.manager.lifecycle)
	if len(rec.begins) != 2 || rec.begins[0].ID == rec.begins[1].ID {
		t.Fatalf("calls = %q, want two Begins with different IDs", rec.calls)
	}
	for _, inv := range rec.begins {
		if ofClient(inv.ID) != "client-1" {
			t.Errorf("ID = %q, want client-1.SUFFIX", inv.ID)
		}
	}
}

// ofClient is how a client finds its request by an invocation's ID.
func ofClient(id string) string { return id[:strings.LastIndex(id, ".")] }

func TestThePoolNeverDelaysARequest(t *testing.T) {
	release := make(chan struct{})
	hang := func(context.Context) error {
		<-release
		return nil
	}
	rec := &recorder{
		beginHook: func(ctx context.Context, _ pool.Invocation) error { return hang(ctx) },
		endHook:   func(ctx context.Context, _ pool.Ending) error { return hang(ctx) },
	}
	c := newChain(t, chainOptions{pool: rec})
	// Were any of these to wait for the pool, the test would not end.
	for range 10 {
		if status, _ := c.send(t, "hello"); status != http.StatusOK {
			t.Errorf("status = %d, want 200", status)
		}
	}
	close(release)
	drain(t, c.manager.lifecycle)
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
	// Were this to wait for the end of the response, the test would not end.
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

func TestBadAnnotation(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	rev.Annotations[api.InputSizeAnnotation] = "body"
	c := newChain(t, chainOptions{pool: rec, rev: rev})
	for range 2 {
		if status, _ := c.send(t, "hello"); status != http.StatusOK {
			t.Errorf("status = %d, want 200", status)
		}
	}
	drain(t, c.manager.lifecycle)
	if len(rec.begins) != 2 || rec.begins[0].Size != api.UnknownSize {
		t.Errorf("Begins = %+v, want two of unknown size", rec.begins)
	}
	if diff := cmp.Diff(map[string]int64{fieldAnnotation: 2}, c.counts(t, "libra.sizes.refused")); diff != "" {
		t.Error("libra.sizes.refused (-want, +got):\n" + diff)
	}
}

func TestRequestID(t *testing.T) {
	for _, tc := range []struct {
		name, header string
		kept         bool
	}{
		{"none", "", false},
		{"UUID", "5f8a3c1e-0b7d-4c35-9c0e-2d7b7a1f0001", true},
		{"longest", strings.Repeat("a", maxIDLength), true},
		{"too long", strings.Repeat("a", maxIDLength+1), false},
		{"unsafe", "a b", false},
		{"not ASCII", "é", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := http.Header{}
			h.Set(requestIDHeader, tc.header)
			id := requestID(h)
			if (id == tc.header) != tc.kept || id == "" {
				t.Errorf("requestID(%q) = %q, want it kept: %v", tc.header, id, tc.kept)
			}
			if !tc.kept && id == requestID(h) {
				t.Errorf("two random IDs are both %q", id)
			}
		})
	}
}

func BenchmarkNotOptedIn(b *testing.B) {
	m := &Manager{}
	rev := newRevision()
	delete(rev.Labels, api.EnabledLabel)
	r := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
	r = r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), rev, revID))
	throttler := m.Throttler(oneDest{})
	h := m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		throttler.Try(r.Context(), revID, func(string, bool) error { return nil })
	}))
	w := httptest.NewRecorder()
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(w, r)
	}
}
