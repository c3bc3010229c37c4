package predict

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
)

var name = types.NamespacedName{Namespace: "ns", Name: "rev-00001"}

// server is a predictor that gives the same answer to every request.
type server struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[answer]
}

type answer struct {
	status int
	body   string
}

// noModel is the predictor's answer for a function that it does not know.
const noModel = `{"error":"no such model"}`

func newServer(t *testing.T, status int, body string) *server {
	s := &server{}
	s.say(status, body)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		a := s.answer.Load()
		w.WriteHeader(a.status)
		io.WriteString(w, a.body)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) say(status int, body string) { s.answer.Store(&answer{status, body}) }

func newClient(t testing.TB, url string, c clock.Clock) *Client {
	t.Helper()
	client := newMeasuredClient(t, url, c, noop.NewMeterProvider(), zaptest.NewLogger(t).Sugar())
	client.fetching = time.Minute // the servers are real, and the machine may be busy
	return client
}

func newMeasuredClient(t testing.TB, url string, c clock.Clock, mp metric.MeterProvider, logger *zap.SugaredLogger) *Client {
	t.Helper()
	client, err := New(Options{URL: url, Clock: c, Logger: logger, MeterProvider: mp})
	if err != nil {
		t.Fatal("New() =", err)
	}
	t.Cleanup(client.Close)
	return client
}

// ask predicts, and waits for the fetch that it may have begun. On a clock that stands
// still the budget does not run out.
func ask(c *Client, size int64) (Prediction, bool) {
	p, ok := c.Predict(context.Background(), name, size)
	c.fetches.Wait()
	return p, ok
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// know gives the client a function with a state.
func know(c *Client, name types.NamespacedName, s state) *function {
	f := &function{}
	f.state.Store(&s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.functions.Swap(name, f); !known {
		c.count++
	}
	return f
}

// counts returns the values of a counter or a gauge by its one attribute.
func counts(t *testing.T, reader sdkmetric.Reader, instrument string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal("Collect() =", err)
	}
	values := map[string]int64{}
	add := func(points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			attrs := p.Attributes.ToSlice()
			values[attrs[0].Value.AsString()] = p.Value
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != instrument {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				add(data.DataPoints)
			case metricdata.Gauge[int64]:
				add(data.DataPoints)
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(attribute.Key("result"))
					values[v.AsString()] = int64(p.Count)
				}
			}
		}
	}
	return values
}

func TestFirstPredictAsks(t *testing.T) {
	got := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(body)
		io.WriteString(w, answerJSON(t, exampleAnswer()))
	}))
	defer s.Close()
	c := newClient(t, s.URL, clocktesting.NewFakeClock(time.Now()))

	p, ok := ask(c, 4096)
	if diff := cmp.Diff(exampleTable().Lookup(4096), p); !ok || diff != "" {
		t.Errorf("first Predict() = %v (-want, +got):\n%s", ok, diff)
	}
	const want = `POST /v2/models/ns.rev-00001/infer {"inputs":[{"name":"size","shape":[1],"datatype":"INT64","data":[4096]}]}`
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Error("The request (-want, +got):\n" + diff)
	}
	p, ok = ask(c, api.UnknownSize)
	if diff := cmp.Diff(exampleTable().Lookup(api.UnknownSize), p); !ok || diff != "" {
		t.Errorf("second Predict() = %v (-want, +got):\n%s", ok, diff)
	}
}

func TestConcurrentAsksFetchOnce(t *testing.T) {
	release := make(chan struct{})
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-release
		io.WriteString(w, answerJSON(t, exampleAnswer()))
	}))
	defer s.Close()
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)

	const askers = 32
	var wg sync.WaitGroup
	var answered atomic.Int32
	for range askers {
		wg.Go(func() {
			if _, ok := c.Predict(context.Background(), name, 1); ok {
				answered.Add(1)
			}
		})
	}
	eventually(t, "all wait for the one fetch", func() bool { return clk.Waiters() == askers })
	close(release)
	wg.Wait()
	if asked.Load() != 1 || answered.Load() != askers {
		t.Errorf("%d asks at a time made %d fetches and %d answers, want 1 and all", askers, asked.Load(), answered.Load())
	}
}

func TestLifeOfATable(t *testing.T) {
	s := newServer(t, http.StatusNotFound, noModel)
	clk := clocktesting.NewFakeClock(time.Now())
	reader := sdkmetric.NewManualReader()
	c := newMeasuredClient(t, s.URL, clk, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), zaptest.NewLogger(t).Sugar())
	good, profiling := answerJSON(t, exampleAnswer()), answerJSON(t, profilingAnswer())

	for _, step := range []struct {
		name   string
		status int
		body   string
		after  time.Duration
		source string
		asked  int32
	}{
		{"unknown function", 404, noModel, 0, "unknown", 1},
		{"the 404 is remembered", 404, noModel, 900 * time.Millisecond, "unknown", 0},
		{"and asked again, with nobody waiting; it is being profiled now", 200, profiling, 200 * time.Millisecond, "unknown", 1},
		{"no prediction while it is", 200, profiling, 900 * time.Millisecond, "profiling", 0},
		{"asked again; it has a model now", 200, good, 200 * time.Millisecond, "profiling", 1},
		{"answered from the table", 200, good, time.Second, "table", 0},
		{"stale while it is fetched again", 200, good, 5 * time.Second, "stale", 1},
		{"predictor down: the stale table is used", 503, "", 6 * time.Second, "stale", 1},
		{"tried again, with a back-off", 503, "", 200 * time.Millisecond, "stale", 1},
		{"not before twice the time", 503, "", 200 * time.Millisecond, "table", 0},
		{"a malformed answer does not replace the table", 200, "{}", 5 * time.Second, "stale", 1},
		{"too old is dropped, and the predictor asked", 503, "", time.Minute, "none", 1},
		{"nobody waits during the back-off", 200, good, 0, "none", 0},
		{"back again, and waited for", 200, good, 5 * time.Second, "asked", 1},
		{"a proxy between knows no way: the table stays", 404, "default backend", 6 * time.Second, "stale", 1},
		{"the model is gone", 404, noModel, 6 * time.Second, "stale", 1},
		{"and so is the table", 404, noModel, 0, "unknown", 0},
	} {
		s.say(step.status, step.body)
		clk.SetTime(clk.Now().Add(step.after))
		before, asked := counts(t, reader, "libra.predict.answers"), s.asked.Load()
		p, ok := ask(c, 1)
		source := ""
		for at, n := range counts(t, reader, "libra.predict.answers") {
			if n > before[at] {
				source = at
			}
		}
		// Ordering needs less than lending: the CPU time is predicted from the start.
		if want := (Prediction{CPUTime: 7 * time.Millisecond}); step.source == "profiling" && p != want {
			t.Errorf("%s: Predict() = %+v, want %+v", step.name, p, want)
		}
		wantOK := step.source == "table" || step.source == "stale" || step.source == "asked"
		if asked = s.asked.Load() - asked; ok != wantOK || source != step.source || asked != step.asked {
			t.Errorf("%s: Predict() = %v from %s with %d fetches, want %v from %s with %d",
				step.name, ok, source, asked, wantOK, step.source, step.asked)
		}
	}
	want := map[string]int64{"ok": 4, "not_found": 2, "malformed": 1, "error": 4}
	if diff := cmp.Diff(want, counts(t, reader, "libra.predict.fetch.duration")); diff != "" {
		t.Error("Fetches by result (-want, +got):\n" + diff)
	}
	if got := counts(t, reader, "libra.predict.table.age")[""]; got != 9 {
		t.Errorf("The age of the table was measured %d times, want 9", got)
	}
}

// Requests to a function that is rarely called neither wait nor run without a prediction,
// unless something speaks against the table.
func TestTableOfARarelyCalledFunction(t *testing.T) {
	for _, tc := range []struct {
		name     string
		age      time.Duration
		hearing  time.Duration // for how long, 0 for not
		failures int
		tripped  bool
		absent   bool // there was no table
		source   string
	}{
		{name: "nothing speaks against it", age: 10 * time.Minute, hearing: 10 * time.Minute, source: "stale"},
		{name: "as old as may be", age: keepFor, hearing: 2 * keepFor, source: "stale"},
		{name: "older", age: keepFor + time.Nanosecond, hearing: 2 * keepFor, source: "asked"},
		{name: "announcements are not heard", age: dropAfter + time.Nanosecond, source: "asked"},
		{name: "one may have been missed", age: 10 * time.Minute, hearing: 10*time.Minute - time.Nanosecond, source: "asked"},
		{name: "younger than what may have been missed", age: dropAfter, hearing: time.Second, source: "stale"},
		{name: "the last fetch failed", age: dropAfter + time.Nanosecond, hearing: time.Hour, failures: 1, source: "asked"},
		{name: "the predictor fails", age: dropAfter + time.Nanosecond, hearing: time.Hour, tripped: true, source: "none"},
		{name: "there was none", age: dropAfter + time.Nanosecond, hearing: time.Hour, absent: true, source: "asked"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t, http.StatusOK, versionJSON(t, "8"))
			clk := clocktesting.NewFakeClock(time.Now())
			reader := sdkmetric.NewManualReader()
			c := newMeasuredClient(t, s.URL, clk, sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), zaptest.NewLogger(t).Sugar())
			fetched := clk.Now().Add(-tc.age)
			known := state{table: exampleTable(), fetched: fetched, due: fetched.Add(refreshAfter), failures: tc.failures}
			if tc.absent {
				known.table = nil
			}
			know(c, name, known)
			if tc.hearing > 0 {
				since := clk.Now().Add(-tc.hearing)
				c.hearing.Store(&since)
			}
			for tc.tripped && c.breaker.State() == gobreaker.StateClosed {
				report, err := c.breaker.Allow()
				if err != nil {
					t.Fatal("Allow() =", err)
				}
				report(errors.New("refused"))
			}

			ask(c, 1)
			if diff := cmp.Diff(map[string]int64{tc.source: 1}, counts(t, reader, "libra.predict.answers")); diff != "" {
				t.Error("Answers (-want, +got):\n" + diff)
			}
			if fetches := s.asked.Load(); fetches != 1 && !tc.tripped {
				t.Errorf("%d fetches, want the table fetched anew", fetches)
			}
		})
	}
}

// A replica that has not heard of the newest table yet must not replace it.
func TestOlderAnswerIsLeft(t *testing.T) {
	s := newServer(t, http.StatusOK, "")
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	for _, step := range []struct {
		answered string
		after    time.Duration
		want     int64
	}{
		{"9", 0, 9},
		{"8", refreshAfter, 9},
		{"8", minRetry, 9},
		{"10", maxRetry, 10},
		{"8", dropAfter, 10}, // the newer table stays in use; the predictor lost its store
		{"8", time.Second, 8},
	} {
		s.say(http.StatusOK, versionJSON(t, step.answered))
		clk.SetTime(clk.Now().Add(step.after))
		ask(c, 1)
		if got := c.find(name).state.Load().table.Version; got != step.want {
			t.Errorf("after answer %s: version %d, want %d", step.answered, got, step.want)
		}
	}
}

func TestFunctionsAreBounded(t *testing.T) {
	s := newServer(t, http.StatusNotFound, noModel)
	clk := clocktesting.NewFakeClock(time.Now())
	c := newClient(t, s.URL, clk)
	for i := range maxFunctions {
		know(c, types.NamespacedName{Namespace: "other", Name: string(rune(i))}, state{}).use(clk.Now())
	}

	ask(c, 1)
	if got := s.asked.Load(); got != 0 {
		t.Errorf("a function beyond the limit was asked for %d times, want 0", got)
	}
	clk.SetTime(clk.Now().Add(forgetAfter))
	ask(c, 1)
	clk.SetTime(clk.Now().Add(forgetEvery - time.Nanosecond))
	ask(c, 1)
	if got := s.asked.Load(); got != 0 {
		t.Errorf("before it was time to look for idle ones again it was asked for %d times, want 0", got)
	}
	clk.SetTime(clk.Now().Add(time.Nanosecond))
	ask(c, 1)
	if got := s.asked.Load(); got != 1 {
		t.Errorf("once the others were idle it was asked for %d times, want 1", got)
	}
}

func TestAnswerIsBounded(t *testing.T) {
	huge, err := json.Marshal(map[string]string{"id": strings.Repeat("x", maxAnswerBytes)})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, http.StatusOK, string(huge))
	c := newClient(t, s.URL, clock.RealClock{})
	ask(c, 1)
	if got := c.find(name).state.Load().failures; got != 1 {
		t.Errorf("an answer of %d bytes made %d failures, want 1", len(huge), got)
	}
}

func TestParseURL(t *testing.T) {
	for _, bad := range []string{"", "predictor:80", "ftp://predictor", "http://", "http://a b"} {
		if u, err := ParseURL(bad); err == nil {
			t.Errorf("ParseURL(%q) = %v, want an error", bad, u)
		}
	}
	for _, good := range []string{"http://libra-predictor.libra-system.svc", "https://10.0.0.1:8080"} {
		if _, err := ParseURL(good); err != nil {
			t.Errorf("ParseURL(%q) = %v", good, err)
		}
	}
}
