package predict

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
)

var name = types.NamespacedName{Namespace: "ns", Name: "rev-00001"}

// server is a predictor that gives every request the same answer.
type server struct {
	*httptest.Server
	asked  atomic.Int32
	answer atomic.Pointer[answer]
}

type answer struct {
	status int
	body   string
}

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

func newClient(t testing.TB, url string, c clock.PassiveClock) *Client {
	t.Helper()
	client, err := New(Options{URL: url, Clock: c, Logger: zaptest.NewLogger(t).Sugar(), MeterProvider: noop.NewMeterProvider()})
	if err != nil {
		t.Fatal("New() =", err)
	}
	t.Cleanup(client.Close)
	return client
}

// ask predicts, and waits for the fetch that this may have begun.
func ask(c *Client, size int64) (Prediction, bool) {
	p, ok := c.Predict(name, size)
	c.fetches.Wait()
	return p, ok
}

func TestPredictAsksInTheBackground(t *testing.T) {
	got := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(body)
		io.WriteString(w, answerJSON(t, exampleAnswer()))
	}))
	defer s.Close()
	c := newClient(t, s.URL, clock.RealClock{})

	if p, ok := ask(c, 12345); ok {
		t.Errorf("first Predict() = %v, want none", p)
	}
	const want = `POST /v2/models/ns.rev-00001/infer {"inputs":[{"name":"size","shape":[1],"datatype":"INT64","data":[12345]}]}`
	if diff := cmp.Diff(want, <-got); diff != "" {
		t.Error("The request (-want, +got):\n" + diff)
	}
	p, ok := ask(c, api.UnknownSize)
	if diff := cmp.Diff(exampleTable().unknown, p); !ok || diff != "" {
		t.Errorf("second Predict() = %v (-want, +got):\n%s", ok, diff)
	}
}

func TestPredictNeverWaits(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer s.Close()
	defer close(release)
	c := newClient(t, s.URL, clock.RealClock{})

	// Were any of these to wait for the server, the test would not end.
	for range 100 {
		if p, ok := c.Predict(name, 1); ok {
			t.Fatalf("Predict() = %v, want none", p)
		}
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
	c := newClient(t, s.URL, clocktesting.NewFakePassiveClock(time.Now()))

	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() { c.Predict(name, 1) })
	}
	wg.Wait()
	close(release)
	c.fetches.Wait()
	if got := asked.Load(); got != 1 {
		t.Errorf("32 asks at a time made %d fetches, want 1", got)
	}
}

func TestLifeOfATable(t *testing.T) {
	s := newServer(t, http.StatusNotFound, `{"error":"no such model"}`)
	clk := clocktesting.NewFakePassiveClock(time.Now())
	c := newClient(t, s.URL, clk)
	good := answerJSON(t, exampleAnswer())

	for _, step := range []struct {
		name   string
		status int
		body   string
		after  time.Duration
		wantOK bool
		asked  int32 // by this step, before its own answer is used
	}{
		{"unknown function", 404, "", 0, false, 1},
		{"the 404 is remembered", 404, "", 900 * time.Millisecond, false, 0},
		{"and asked again; it has a model now", 200, good, 200 * time.Millisecond, false, 1},
		{"answered from the table", 200, good, time.Second, true, 0},
		{"stale while it is fetched again", 200, good, 5 * time.Second, true, 1},
		{"predictor down: the stale table is used", 503, "", 6 * time.Second, true, 1},
		{"tried again, with a back-off", 503, "", 200 * time.Millisecond, true, 1},
		{"not before twice the time", 503, "", 200 * time.Millisecond, true, 0},
		{"a malformed answer does not replace the table", 200, "{}", 5 * time.Second, true, 1},
		{"too old is dropped", 503, "", time.Minute, false, 1},
		{"back again", 200, good, 5 * time.Second, false, 1},
		{"and answered", 200, good, 0, true, 0},
		{"the model is gone", 404, "", 6 * time.Second, true, 1},
		{"and so is the table", 404, "", 0, false, 0},
	} {
		s.say(step.status, step.body)
		clk.SetTime(clk.Now().Add(step.after))
		before := s.asked.Load()
		_, ok := ask(c, 1)
		if asked := s.asked.Load() - before; ok != step.wantOK || asked != step.asked {
			t.Errorf("%s: Predict() = %v with %d fetches, want %v with %d", step.name, ok, asked, step.wantOK, step.asked)
		}
	}
}

func TestFunctionsAreBounded(t *testing.T) {
	s := newServer(t, http.StatusNotFound, "")
	clk := clocktesting.NewFakePassiveClock(time.Now())
	c := newClient(t, s.URL, clk)
	for i := range maxFunctions {
		f := &function{}
		f.state.Store(&state{due: clk.Now()})
		c.functions[types.NamespacedName{Namespace: "other", Name: string(rune(i))}] = f
	}

	ask(c, 1)
	if got := s.asked.Load(); got != 0 {
		t.Errorf("a function beyond the limit was asked for %d times, want 0", got)
	}
	clk.SetTime(clk.Now().Add(dropAfter))
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
	if got := c.functions[name].state.Load().failures; got != 1 {
		t.Errorf("an answer of %d bytes made %d failures, want 1", len(huge), got)
	}
}

func TestParseURL(t *testing.T) {
	for _, bad := range []string{"", "predictor:80", "ftp://predictor", "http://", "http://a b"} {
		if u, err := ParseURL(bad); err == nil {
			t.Errorf("ParseURL(%q) = %v, want an error", bad, u)
		}
	}
	for _, good := range []string{"http://libra-predictor.libra-system.svc.cluster.local", "https://10.0.0.1:8080"} {
		if _, err := ParseURL(good); err != nil {
			t.Errorf("ParseURL(%q) = %v", good, err)
		}
	}
}

func BenchmarkPredict(b *testing.B) {
	c := newClient(b, "http://localhost", clock.RealClock{})
	f := &function{}
	f.state.Store(&state{table: exampleTable(), fetched: time.Now(), due: time.Now().Add(time.Hour)})
	c.functions[name] = f
	b.ReportAllocs()
	for b.Loop() {
		c.Predict(name, 1234)
	}
}
