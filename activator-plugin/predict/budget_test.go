package predict

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// predictor answers within the process, so that it runs on the test's clock.
type predictor struct {
	takes time.Duration
	err   error
	body  string
	asked atomic.Int32
	last  atomic.Pointer[http.Header]
}

func (p *predictor) RoundTrip(r *http.Request) (*http.Response, error) {
	p.asked.Add(1)
	p.last.Store(&r.Header)
	timer := time.NewTimer(p.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if p.err != nil {
		return nil, p.err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(p.body))}, nil
}

type bubble struct {
	*Client
	metrics *sdkmetric.ManualReader
	logs    *observer.ObservedLogs
}

// inBubble runs f with a client of p, on a clock of its own.
func inBubble(t *testing.T, p *predictor, f func(t *testing.T, c bubble)) {
	synctest.Test(t, func(t *testing.T) {
		if p.body == "" {
			p.body = answerJSON(t, exampleAnswer())
		}
		reader := sdkmetric.NewManualReader()
		core, logs := observer.New(zap.InfoLevel)
		c := newMeasuredClient(t, "http://predictor", clock.RealClock{},
			sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), zap.New(core).Sugar())
		c.http.Transport = p
		f(t, bubble{c, reader, logs})
	})
}

func (b bubble) predict(ctx context.Context, name types.NamespacedName) (ok bool, waited time.Duration) {
	started := time.Now()
	_, ok = b.Predict(ctx, name, 1)
	return ok, time.Since(started)
}

func TestBudget(t *testing.T) {
	for _, tc := range []struct {
		name   string
		takes  time.Duration
		err    error
		ok     bool
		waited time.Duration
		source string
	}{
		{"within it", time.Millisecond, nil, true, time.Millisecond, "asked"},
		{"past it", 3 * time.Millisecond, nil, false, 2 * time.Millisecond, "timeout"},
		{"an error ends the wait", time.Millisecond, errors.New("refused"), false, time.Millisecond, "none"},
		{"a predictor that hangs", time.Hour, nil, false, 2 * time.Millisecond, "timeout"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, &predictor{takes: tc.takes, err: tc.err}, func(t *testing.T, c bubble) {
				ok, waited := c.predict(t.Context(), name)
				if ok != tc.ok || waited != tc.waited {
					t.Errorf("Predict() = %v after %v, want %v after %v", ok, waited, tc.ok, tc.waited)
				}
				if diff := cmp.Diff(map[string]int64{tc.source: 1}, counts(t, c.metrics, "libra.predict.answers")); diff != "" {
					t.Error("Answers (-want, +got):\n" + diff)
				}
			})
		})
	}
}

func TestFetchGoesOnPastTheBudget(t *testing.T) {
	p := &predictor{takes: 100 * time.Millisecond}
	inBubble(t, p, func(t *testing.T, c bubble) {
		c.predict(t.Context(), name)
		// A later request does not wait for a fetch that has already lasted too long.
		time.Sleep(10 * time.Millisecond)
		if ok, waited := c.predict(t.Context(), name); ok || waited != 0 {
			t.Errorf("while it lasts, Predict() = %v after %v, want none at once", ok, waited)
		}
		time.Sleep(100 * time.Millisecond)
		if ok, waited := c.predict(t.Context(), name); !ok || waited != 0 {
			t.Errorf("after it, Predict() = %v after %v, want an answer at once", ok, waited)
		}
		if got := p.asked.Load(); got != 1 {
			t.Errorf("the predictor was asked %d times, want 1", got)
		}
	})
}

func TestBudgetIsOfTheFetch(t *testing.T) {
	inBubble(t, &predictor{takes: time.Hour}, func(t *testing.T, c bubble) {
		go c.predict(t.Context(), name)
		time.Sleep(1500 * time.Microsecond)
		if ok, waited := c.predict(t.Context(), name); ok || waited != 500*time.Microsecond {
			t.Errorf("Predict() = %v after %v, want none after what the first one's wait leaves, 500µs", ok, waited)
		}
	})
}

func TestRequestThatEndsDoesNotWait(t *testing.T) {
	inBubble(t, &predictor{takes: time.Hour}, func(t *testing.T, c bubble) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if ok, waited := c.predict(ctx, name); ok || waited != time.Millisecond {
			t.Errorf("Predict() = %v after %v, want none after 1ms", ok, waited)
		}
		if got := counts(t, c.metrics, "libra.predict.answers")["cancelled"]; got != 1 {
			t.Errorf("%d counted as cancelled, want 1", got)
		}
	})
}

func TestNobodyWaitsForAStaleTable(t *testing.T) {
	p := &predictor{}
	inBubble(t, p, func(t *testing.T, c bubble) {
		c.predict(t.Context(), name)
		p.takes = time.Hour
		time.Sleep(refreshAfter)
		if ok, waited := c.predict(t.Context(), name); !ok || waited != 0 {
			t.Errorf("Predict() = %v after %v, want an answer at once", ok, waited)
		}
	})
}

func TestBreaker(t *testing.T) {
	p := &predictor{err: errors.New("refused"), takes: time.Millisecond}
	inBubble(t, p, func(t *testing.T, c bubble) {
		other := func(i int) types.NamespacedName {
			return types.NamespacedName{Namespace: "ns", Name: string(rune('a' + i))}
		}
		state := func() string {
			t.Helper()
			for state, in := range counts(t, c.metrics, "libra.predict.breaker") {
				if in == 1 {
					return state
				}
			}
			return "none"
		}
		expect := func(when, wantState string, wantAsked int32) {
			t.Helper()
			synctest.Wait()
			if got := state(); got != wantState || p.asked.Load() != wantAsked {
				t.Fatalf("%s the breaker is %s after %d fetches, want %s after %d", when, got, p.asked.Load(), wantState, wantAsked)
			}
		}
		at := func(when string, i int, wantOK bool, wantWaited time.Duration) {
			t.Helper()
			if ok, waited := c.predict(t.Context(), other(i)); ok != wantOK || waited != wantWaited {
				t.Fatalf("%s Predict() = %v after %v, want %v after %v", when, ok, waited, wantOK, wantWaited)
			}
		}

		expect("at first", "closed", 0)
		for i := range tripAfter {
			at("while it fails", i, false, time.Millisecond)
		}
		expect("after failures in a row", "open", tripAfter)
		for i := range 20 {
			at("when open", i, false, 0)
		}
		expect("until it is time", "open", tripAfter)

		time.Sleep(probeAfter + time.Millisecond)
		at("for a probe nobody waits:", 6, false, 0)
		at("besides the probe nothing is sent:", 7, false, 0)
		expect("during the probe", "half-open", tripAfter+1)
		time.Sleep(2 * time.Millisecond)
		expect("after a probe that failed", "open", tripAfter+1)

		p.err = nil
		time.Sleep(probeAfter + time.Millisecond)
		at("the next probe:", 8, false, 0)
		time.Sleep(2 * time.Millisecond)
		expect("after a probe that succeeded", "closed", tripAfter+2)
		at("after it", 8, true, 0)
		at("after it", 9, true, time.Millisecond)

		var said []string
		for _, entry := range c.logs.All() {
			if strings.HasPrefix(entry.Message, "The predictor") {
				said = append(said, entry.Message)
			}
		}
		want := []string{"The predictor keeps failing; not asking it until a probe succeeds", "The predictor answers again"}
		if diff := cmp.Diff(want, said); diff != "" {
			t.Error("Logged (-want, +got):\n" + diff)
		}
		// While the breaker was open, 5 of the 20 were not due. One more was skipped beside the
		// probe.
		if got := counts(t, c.metrics, "libra.predict.fetches.skipped")["breaker"]; got != 16 {
			t.Errorf("%d fetches were not sent for the breaker, want 16", got)
		}
	})
}

// A bad answer about one function says nothing about the predictor's health.
func TestBreakerStaysClosed(t *testing.T) {
	p := &predictor{body: "{}"}
	inBubble(t, p, func(t *testing.T, c bubble) {
		for range 2 * tripAfter {
			c.predict(t.Context(), name)
			time.Sleep(maxRetry)
		}
		if got := p.asked.Load(); got != 2*tripAfter {
			t.Errorf("the predictor was asked %d times, want %d", got, 2*tripAfter)
		}
	})
}

func TestFetchesAreBounded(t *testing.T) {
	p := &predictor{takes: time.Hour}
	inBubble(t, p, func(t *testing.T, c bubble) {
		for i := range maxFetches + 1 {
			go c.predict(t.Context(), types.NamespacedName{Namespace: "ns", Name: string(rune('a' + i))})
		}
		synctest.Wait()
		if got := p.asked.Load(); got != maxFetches {
			t.Errorf("%d fetches at a time, want %d", got, maxFetches)
		}
		if got := counts(t, c.metrics, "libra.predict.fetches.skipped")["fetches"]; got != 1 {
			t.Errorf("%d fetches were skipped, want 1", got)
		}
		time.Sleep(fetchTimeout) // the fetches end, and so do the requests that wait
	})
}

func TestPrefetchesLeaveSlots(t *testing.T) {
	p := &predictor{takes: time.Hour}
	inBubble(t, p, func(t *testing.T, c bubble) {
		var changes []string
		for i := range maxFetches {
			name := types.NamespacedName{Namespace: "ns", Name: string(rune('a' + i))}
			know(c.Client, name, state{table: exampleTable(), fetched: time.Now(), due: time.Now()}).use(time.Now())
			changes = append(changes, `{"function":"`+name.String()+`","version":"8","offset":[0,0],"largest":[0,0]}`)
		}
		c.hear(announce(strings.Join(changes, ",")))
		synctest.Wait()
		if got := p.asked.Load(); got != maxPrefetches {
			t.Errorf("%d fetches that no request asked for, want %d", got, maxPrefetches)
		}
		if got := counts(t, c.metrics, "libra.predict.fetches.skipped")["fetches"]; got != maxFetches-maxPrefetches {
			t.Errorf("%d fetches were skipped, want %d", got, maxFetches-maxPrefetches)
		}
		time.Sleep(fetchTimeout) // the fetches end
	})
}

func TestFetchIsOfTheTraceThatAsked(t *testing.T) {
	p := &predictor{}
	inBubble(t, p, func(t *testing.T, c bubble) {
		ctx, cancel := context.WithCancel(trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
		})))
		cancel() // the fetch goes on
		c.predict(ctx, name)
		synctest.Wait()
		const want = "00-01000000000000000000000000000000-0200000000000000-01"
		if got := p.last.Load().Get("traceparent"); got != want {
			t.Errorf("traceparent = %q, want %q", got, want)
		}
		if ok, _ := c.predict(t.Context(), name); !ok {
			t.Error("the fetch ended with the request")
		}
	})
}
