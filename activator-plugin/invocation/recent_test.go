package invocation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/serving"
	"knative.dev/serving/pkg/queue"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	testTrace       = "0af7651916cd43dd8448eb211c80319c"
	testTraceparent = "00-" + testTrace + "-b7ad6b7169203331-00"
)

// requests asks a manager as the plugin does.
func requests(t *testing.T, m *Manager, parameters ...string) Requests {
	t.Helper()
	query := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	w := httptest.NewRecorder()
	m.RequestsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/requests?"+query.Encode(), nil))
	var found Requests
	if err := json.Unmarshal(w.Body.Bytes(), &found); err != nil || w.Code != http.StatusOK {
		t.Fatalf("The answer is %d %s (%v)", w.Code, w.Body, err)
	}
	return found
}

// the is the one request that is found.
func the(t *testing.T, found Requests) Decision {
	t.Helper()
	if len(found.Found) != 1 {
		t.Fatalf("%d requests are found, want one: %+v", len(found.Found), found)
	}
	return found.Found[0]
}

func TestARequestIsFoundByItsTrace(t *testing.T) {
	rev := newRevision()
	rev.Labels[serving.ServiceLabelKey] = "thumb"
	prediction := predict.Prediction{Demand: res(300, 600), Duration: 2 * time.Second}
	c := newChain(t, chainOptions{pool: &recorder{}, rev: rev, predictions: predictions{revID: prediction}})
	c.send(t, "hello", "Traceparent", testTraceparent, "X-Request-Id", "client-1")
	c.send(t, "hello")
	drain(t, c.manager.lifecycle)

	found := requests(t, c.manager, "trace", testTrace)
	d := the(t, found)
	if found.Kept != 2 || found.Oldest == nil || found.Oldest.Before(d.Arrived) {
		t.Errorf("%d are kept, of which the oldest ended at %v", found.Kept, found.Oldest)
	}
	if d.Trace != testTrace || d.RequestID != "client-1" || d.Namespace != "ns" || d.Revision != "rev-00001" || d.Service != "thumb" || d.Pod != "ns/a" || d.Node != "node-a" {
		t.Errorf("It is %+v", d)
	}
	if !d.Dispatched || d.Status != http.StatusOK || d.Size != 5 || d.Ran.Duration <= 0 || d.Abandoned {
		t.Errorf("It is %+v", d)
	}
	if !d.Predicted || d.Prediction != prediction || d.Allocation != res(1000, 512) || d.Mode != api.ModeFull || d.Role != string(roleBoth) || d.Reason != "" {
		t.Errorf("It is %+v", d)
	}
	if d.CouldLend != res(600, 0) || d.WouldBorrow != res(0, 88) || d.Surplus != d.CouldLend || d.Want != d.WouldBorrow {
		t.Errorf("It could lend %v and would borrow %v, and told %v and %v", d.CouldLend, d.WouldBorrow, d.Surplus, d.Want)
	}
	if d.Pool == nil || !d.Pool.Begun || !d.Pool.Ended {
		t.Errorf("The pool said %+v", d.Pool)
	}

	if again := the(t, requests(t, c.manager, "id", "client-1")); again.Trace != testTrace {
		t.Errorf("By its X-Request-Id another is found: %+v", again)
	}
	if all := requests(t, c.manager, "namespace", "ns", "service", "thumb"); len(all.Found) != 2 || all.Found[1].Trace != testTrace {
		t.Errorf("Of the Service are found %+v, want the newest first", all.Found)
	}
	for _, other := range [][]string{{"trace", strings.Repeat("1", 32)}, {"id", "client-2"}, {"namespace", "ns", "service", "cart"}} {
		if got := requests(t, c.manager, other...); len(got.Found) != 0 {
			t.Errorf("By %v is found %+v", other, got.Found)
		}
	}
}

// The pool's answer is kept with what the request got.
func TestWhatThePoolSaidIsKept(t *testing.T) {
	r := newRecent()
	number := r.add(&kept{told: true})
	r.begun(number, res(100, 64))
	r.ended(number, pool.Outcome{Found: true, Lent: res(1, 2), Borrowed: res(90, 64), Safeguarded: true})
	want := PoolAnswer{Begun: true, Granted: res(100, 64), Ended: true, Lent: res(1, 2), Borrowed: res(90, 64), Safeguarded: true}
	if got := the(t, r.find(func(*kept) bool { return true })).Pool; got == nil || *got != want {
		t.Errorf("The pool's answer is %+v, want %+v", got, want)
	}
}

func TestARequestThatGotNoSlotIsKept(t *testing.T) {
	c := newChain(t, chainOptions{pool: &recorder{}, throttler: oneDest{err: queue.ErrRequestQueueFull}})
	c.send(t, "hello", "Traceparent", testTraceparent)
	if d := the(t, requests(t, c.manager, "trace", testTrace)); d.Dispatched || d.Status != http.StatusServiceUnavailable || d.Pool != nil {
		t.Errorf("It is %+v, want one that was answered 503", d)
	}
}

// A status that is set once the client is gone, or the time has run out, reaches nobody.
func TestAResponseThatNobodyIsSentIsNone(t *testing.T) {
	m := newRankingManager(t, &recorder{}, full, nil, newPod("a", "10.0.0.1"))
	for name, next := range map[string]http.HandlerFunc{
		"in the queue": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"in its pod": func(w http.ResponseWriter, r *http.Request) {
			m.Throttler(oneDest{dest: "10.0.0.1:80"}).Try(r.Context(), revID, func(string, bool) error {
				http.Error(w, "context canceled", http.StatusBadGateway)
				return nil
			})
		},
	} {
		ctx, cancel := context.WithCancel(activatorhandler.WithRevisionAndID(t.Context(), newRevision(), revID))
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
		r.Header.Set("X-Request-Id", strings.ReplaceAll(name, " ", "-"))
		m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			cancel()
			next(w, r)
		})).ServeHTTP(httptest.NewRecorder(), r)
		if d := the(t, requests(t, m, "id", r.Header.Get("X-Request-Id"))); d.Status != 0 || !d.Abandoned {
			t.Errorf("%s: its status is %d, and it is abandoned: %t; want none, and that it is", name, d.Status, d.Abandoned)
		}
	}
	drain(t, m.lifecycle)
}

func TestARequestOfAnUnknownPodIsKept(t *testing.T) {
	c := newChain(t, chainOptions{pool: &recorder{}, throttler: oneDest{clusterIP: true}})
	c.send(t, "hello", "Traceparent", testTraceparent)
	if d := the(t, requests(t, c.manager, "trace", testTrace)); !d.Dispatched || d.Pod != "" || d.Role != string(roleUnmanaged) || d.Reason != string(reasonClusterIP) {
		t.Errorf("It is %+v", d)
	}
}

func TestTheLastRequestsAreKept(t *testing.T) {
	r := newRecent()
	for i := range recentMost + 3 {
		k := &kept{told: true}
		k.RequestID = fmt.Sprint(i)
		r.add(k)
	}
	r.begun(3, res(1, 1)) // which is gone
	byID := func(id string) Requests { return r.find(func(k *kept) bool { return k.RequestID == id }) }
	if found := byID("2"); found.Kept != recentMost || len(found.Found) != 0 {
		t.Errorf("The third is found among %d: %+v", found.Kept, found.Found)
	}
	if d := the(t, byID("3")); d.Pool.Begun {
		t.Errorf("What came late of one is said of another: %+v", d.Pool)
	}
	all := r.find(func(*kept) bool { return true })
	if len(all.Found) != recentFound || all.Found[0].RequestID != fmt.Sprint(recentMost+2) {
		t.Errorf("%d are told, and the first is %s, want %d from the newest", len(all.Found), all.Found[0].RequestID, recentFound)
	}
}

func TestATraceThatIsNoneIsRefused(t *testing.T) {
	c := newChain(t, chainOptions{pool: &recorder{}})
	w := httptest.NewRecorder()
	c.manager.RequestsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/requests?trace=one", nil))
	if w.Code != http.StatusBadRequest {
		t.Errorf("The status is %d, want 400", w.Code)
	}
}

func TestKeepingAllocatesNothing(t *testing.T) {
	r, k := newRecent(), &kept{told: true, trace: trace.TraceID{1}}
	if allocated := testing.AllocsPerRun(100, func() {
		number := r.add(k)
		r.begun(number, res(1, 1))
		r.ended(number, pool.Outcome{})
	}); allocated != 0 {
		t.Errorf("A request allocates %v times", allocated)
	}
}

// BenchmarkRecent measures what keeping adds to a request, on all cores at once.
func BenchmarkRecent(b *testing.B) {
	r := newRecent()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		k := &kept{told: true, trace: trace.TraceID{1}}
		for pb.Next() {
			r.add(k)
		}
	})
	b.ReportMetric(float64(reflect.TypeFor[kept]().Size()*recentMost)/(1<<20), "MiB-kept")
}
