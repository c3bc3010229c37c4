package duplicator

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

var copyRevision = types.NamespacedName{Namespace: "ns", Name: "shop-00001-libra-copy-00001"}

func newTestReplayer(t *testing.T, activator http.HandlerFunc) *replayer {
	t.Helper()
	server := httptest.NewServer(activator)
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplayer(base)
	t.Cleanup(r.close)
	return r
}

func ignore(string) {}

func TestReplayIsTheInputScaled(t *testing.T) {
	var got *http.Request
	var body []byte
	r := newTestReplayer(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	in := input{method: http.MethodPut, path: "/a/b", rawPath: "/a%2Fb", query: "x=1&y", contentType: "text/plain", body: []byte("abc")}
	counts := r.sendAll(t.Context(), copyRevision, []replay{{&in, 100}}, ignore)
	if diff := cmp.Diff(tally{resultOK: 1}, counts); diff != "" {
		t.Fatal("results (-want, +got):\n" + diff)
	}
	want := http.Header{
		"Knative-Serving-Namespace": {"ns"},
		"Knative-Serving-Revision":  {copyRevision.Name},
		"Libra-Duplicate":           {"true"},
		"Content-Type":              {"text/plain"},
		"Content-Length":            {"100"},
		"Libra-Copy-Secret":         {r.secret},
		"User-Agent":                {"libra-duplicator"},
	}
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Error("headers (-want, +got):\n" + diff)
	}
	if got.Method != http.MethodPut || got.RequestURI != "/a%2Fb?x=1&y" || got.ContentLength != 100 {
		t.Errorf("%s %s of %d bytes", got.Method, got.RequestURI, got.ContentLength)
	}
	if want := bytes.Repeat([]byte("abc"), 34)[:100]; !bytes.Equal(body, want) {
		t.Errorf("body = %q, want %q", body, want)
	}
}

func TestReplaysAreNotRedirected(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	r := newTestReplayer(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	counts := r.sendAll(t.Context(), copyRevision, []replay{{&input{method: http.MethodPost, path: "/", body: []byte("a")}, 64}}, ignore)
	if counts[resultOther] != 1 || elsewhere.Load() != 0 {
		t.Errorf("results are %v, %d requests went elsewhere", counts, elsewhere.Load())
	}
}

func TestResultsAreCounted(t *testing.T) {
	status := map[int64]int{64: 200, 65: 204, 66: 400, 67: 429, 68: 500, 69: 503}
	r := newTestReplayer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 70 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status[r.ContentLength])
	})
	var replays []replay
	in := input{method: http.MethodPost, path: "/", body: []byte("a")}
	for size := int64(64); size <= 70; size++ {
		replays = append(replays, replay{&in, size})
	}
	told := tally{}
	counts := r.sendAll(t.Context(), copyRevision, replays, func(result string) { told[result]++ })
	want := tally{resultOK: 2, resultClientError: 2, resultServerError: 2, resultError: 1}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Error("results (-want, +got):\n" + diff)
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error("told (-want, +got):\n" + diff)
	}
}

func TestReplaysAreBoundedInNumberAndTime(t *testing.T) {
	var now, most atomic.Int64
	var both sync.Once
	two := make(chan struct{})
	r := newTestReplayer(t, func(_ http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); {
			m = most.Load()
		}
		// Read, so that the server notices when the client goes away.
		_, _ = io.Copy(io.Discard, r.Body)
		if n == parallel {
			both.Do(func() { close(two) })
		}
		select {
		case <-two: // each waits until as many as allowed are in flight
		case <-r.Context().Done():
		}
	})
	inputs := []input{{method: http.MethodPost, path: "/", body: make([]byte, 1000)}}
	replays := plan(inputs)
	counts := r.sendAll(t.Context(), copyRevision, replays, ignore)
	if counts[resultOK] != len(replays) {
		t.Errorf("results are %v, want all of %d ok", counts, len(replays))
	}
	if most.Load() != parallel {
		t.Errorf("%d at once, want %d", most.Load(), parallel)
	}

	hanging := newTestReplayer(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	hanging.within = 10 * time.Millisecond
	if counts := hanging.sendAll(t.Context(), copyRevision, replays[:1], ignore); counts[resultTimeout] != 1 {
		t.Errorf("results are %v, want a timeout", counts)
	}
	hanging.within = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if counts := hanging.sendAll(ctx, copyRevision, replays, ignore); counts.total() != 0 {
		t.Errorf("results are %v, want none of a run that was cancelled", counts)
	}
}
