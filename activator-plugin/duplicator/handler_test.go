package duplicator

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap/zaptest"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

// keeper is a Duplicator that is not run.
type keeper struct {
	*Duplicator
	clock    *clocktesting.FakeClock
	recorder *record.FakeRecorder
}

func newKeeper(t testing.TB) keeper {
	t.Helper()
	m, err := newMetrics(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	recorder := record.NewFakeRecorder(100)
	return keeper{
		Duplicator: &Duplicator{
			clock:    clk,
			logger:   zaptest.NewLogger(t).Sugar(),
			metrics:  m,
			events:   recorder,
			replayer: newReplayer(nil),
			inputs:   newInputs(),
			stopped:  func(string) bool { return false },
		},
		clock:    clk,
		recorder: recorder,
	}
}

// answer sets the standing of a revision about which nothing is known yet.
func answer(in *inputs, k key, s standing) {
	in.mu.Lock()
	_, known := in.known[k]
	in.mu.Unlock()
	if !known {
		in.answer(k, s, time.Time{})
	}
}

// do sends a request of the revision to a function that reads it.
func (k keeper) do(rev *v1.Revision, r *http.Request) {
	k.doWith(rev, r, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
}

// doWith is do with next as the function. It presumes that Redis knows nothing against
// the revision.
func (k keeper) doWith(rev *v1.Revision, r *http.Request, next http.HandlerFunc) {
	answer(k.inputs, keyOf(rev), standing{wanted: true})
	ctx := activatorhandler.WithRevisionAndID(r.Context(), rev, keyOf(rev).NamespacedName)
	k.Handler(next).ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
}

func (k keeper) kept(rev *v1.Revision) []input {
	if g := k.inputs.gathered[keyOf(rev)]; g != nil {
		return g.inputs
	}
	return nil
}

func post(body string) *http.Request {
	return httptest.NewRequest(http.MethodPost, "http://shop.test/a%2Fb?x=1", strings.NewReader(body))
}

func TestNothingIsKeptWithoutTheOptIn(t *testing.T) {
	for name, change := range map[string]func(*v1.Revision){
		"no annotation":         func(r *v1.Revision) { delete(r.Annotations, api.DuplicateInputsAnnotation) },
		"annotation is false":   func(r *v1.Revision) { r.Annotations[api.DuplicateInputsAnnotation] = "false" },
		"annotation is yes":     func(r *v1.Revision) { r.Annotations[api.DuplicateInputsAnnotation] = "yes" },
		"annotation is TRUE":    func(r *v1.Revision) { r.Annotations[api.DuplicateInputsAnnotation] = "TRUE" },
		"not opted in to Libra": func(r *v1.Revision) { delete(r.Labels, api.EnabledLabel) },
		"a copy":                func(r *v1.Revision) { r.Labels[api.CopyOfLabel] = "other" },
		"size from a header":    func(r *v1.Revision) { r.Annotations[api.InputSizeAnnotation] = "header:X-Size" },
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t)
			rev := newRevision("shop-00001")
			change(rev)
			for range 5 {
				k.do(rev, post("body"))
			}
			if got := k.kept(rev); got != nil || k.inputs.bytes != 0 {
				t.Errorf("kept %d inputs", len(got))
			}
			k.clock.Step(time.Hour)
			if _, due := k.inputs.take(k.clock.Now()); due {
				t.Error("there is something to duplicate")
			}
		})
	}
}

func TestOnlyReplaysReachACopy(t *testing.T) {
	k, other := newKeeper(t), newKeeper(t)
	for name, tc := range map[string]struct {
		secrets []string
		status  int
	}{
		"none":                {nil, http.StatusForbidden},
		"an empty one":        {[]string{""}, http.StatusForbidden},
		"a wrong one":         {[]string{strings.Repeat("A", len(k.replayer.secret))}, http.StatusForbidden},
		"a part of it":        {[]string{k.replayer.secret[:10]}, http.StatusForbidden},
		"another activator's": {[]string{other.replayer.secret}, http.StatusForbidden},
		"its own":             {[]string{k.replayer.secret}, http.StatusAccepted},
		"its own and more":    {[]string{k.replayer.secret, "x"}, http.StatusAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			rev := newRevision("shop-00001-libra-copy-00001")
			rev.Labels[api.CopyOfLabel] = "shop-00001"
			r := post("body")
			r.Header.Set(api.DuplicateHeader, api.DuplicateHeaderValue)
			r.Header[secretHeader] = tc.secrets
			function := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, there := r.Header[secretHeader]; there {
					t.Errorf("the function sees the secret %q", got)
				}
				w.WriteHeader(http.StatusAccepted)
			})
			response := httptest.NewRecorder()
			ctx := activatorhandler.WithRevisionAndID(r.Context(), rev, keyOf(rev).NamespacedName)
			k.Handler(function).ServeHTTP(response, r.WithContext(ctx))
			if response.Code != tc.status {
				t.Errorf("status = %d, want %d", response.Code, tc.status)
			}
			if said := response.Body.String(); response.Code == http.StatusForbidden && !strings.Contains(said, "ns/shop-00001-libra-copy-00001 is a copy") {
				t.Errorf("the answer does not say why: %q", said)
			}
		})
	}
}

func TestOwnerIsToldOnceWhatIsWrong(t *testing.T) {
	for annotation, value := range map[string]string{
		api.DuplicateInputsAnnotation: "yes",
		api.InputSizeAnnotation:       "header:X-Size",
	} {
		k := newKeeper(t)
		rev := newRevision("shop-00001")
		rev.Annotations[annotation] = value
		k.do(rev, post("body"))
		k.do(rev, post("body"))
		if n := len(k.recorder.Events); n != 1 {
			t.Fatalf("%s: %d events, want 1", annotation, n)
		}
		if event := <-k.recorder.Events; !strings.Contains(event, annotation) || !strings.Contains(event, value) {
			t.Errorf("the event %q does not name %s and %q", event, annotation, value)
		}
	}
}

func TestWhatIsKept(t *testing.T) {
	k := newKeeper(t)
	rev := newRevision("shop-00001")
	r := post("body")
	r.Header = http.Header{
		"Content-Type":  {"text/plain"},
		"Authorization": {"Bearer secret"},
		"Cookie":        {"session=secret"},
		"X-Api-Key":     {"secret"},
	}
	k.do(rev, r)
	want := []input{{
		method: http.MethodPost, path: "/a/b", rawPath: "/a%2Fb", query: "x=1", contentType: "text/plain", body: []byte("body"),
	}}
	if diff := cmp.Diff(want, k.kept(rev), cmp.AllowUnexported(input{})); diff != "" {
		t.Error("kept (-want, +got):\n" + diff)
	}
}

func TestWhatIsNotKept(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for name, change := range map[string]func(*http.Request){
		"no length": func(r *http.Request) { r.ContentLength = -1 },
		"empty":     func(r *http.Request) { r.ContentLength, r.Body = 0, http.NoBody },
		"too large": func(r *http.Request) { r.ContentLength = maxBody + 1 },
		"encoded":   header("Content-Encoding", "gzip"),
		"upgrade": func(r *http.Request) {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
		},
		"a duplicate": header(api.DuplicateHeader, "true"),
		"cut short":   func(r *http.Request) { r.ContentLength = 100 },
	} {
		k := newKeeper(t)
		rev := newRevision("shop-00001")
		r := post("body")
		change(r)
		k.do(rev, r)
		if len(k.inputs.gathered) != 0 || k.inputs.bytes != 0 {
			t.Errorf("%s: %d functions and %d bytes are kept", name, len(k.inputs.gathered), k.inputs.bytes)
		}
	}
}

func TestOnlyWhatSucceedsIsKept(t *testing.T) {
	respond := func(act http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			act(w, r)
		}
	}
	status := func(statuses ...int) http.HandlerFunc {
		return respond(func(w http.ResponseWriter, _ *http.Request) {
			for _, status := range statuses {
				w.WriteHeader(status)
			}
		})
	}
	for name, tc := range map[string]struct {
		function http.HandlerFunc
		kept     bool
	}{
		"200":               {status(200), true},
		"204":               {status(204), true},
		"early hints":       {status(103, 200), true},
		"early hints, 400":  {status(103, 400), false},
		"302":               {status(302), false},
		"400":               {status(400), false},
		"401":               {status(401), false},
		"404":               {status(404), false},
		"500":               {status(500), false},
		"a body alone":      {respond(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }), true},
		"a body, then 500":  {respond(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")); w.WriteHeader(500) }), true},
		"500 and a body":    {respond(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); _, _ = w.Write(nil) }), false},
		"200, then a panic": {respond(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) }), false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t)
			rev := newRevision("shop-00001")
			func() {
				defer func() { _ = recover() }()
				k.doWith(rev, post("body"), tc.function)
			}()
			if got := len(k.kept(rev)) == 1; got != tc.kept {
				t.Errorf("kept: %v, want %v", got, tc.kept)
			}
			if want := map[bool]int64{true: 4}[tc.kept]; k.inputs.bytes != want {
				t.Errorf("%d bytes are held, want %d", k.inputs.bytes, want)
			}
		})
	}
}

// A function that streams flushes through the wrapped writer.
func TestAnswersOfKeptRequestsAreFlushed(t *testing.T) {
	k := newKeeper(t)
	k.doWith(newRevision("shop-00001"), post("body"), func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error("Flush() =", err)
		}
	})
}

// A kept body takes exactly its length, however it arrives: that is what is counted.
func TestBodyTakesItsLength(t *testing.T) {
	k := newKeeper(t)
	rev := newRevision("shop-00001")
	r := post(strings.Repeat("a", 100_001))
	r.Body = io.NopCloser(iotest.HalfReader(r.Body))
	k.do(rev, r)
	kept := k.kept(rev)
	if len(kept) != 1 || cap(kept[0].body) != 100_001 {
		t.Fatalf("%d inputs are kept", len(kept))
	}
}

func TestRequestThatNobodyReadsGivesItsRoomBack(t *testing.T) {
	k := newKeeper(t)
	rev := newRevision("shop-00001")
	k.doWith(rev, post("body"), func(http.ResponseWriter, *http.Request) {})
	func() {
		defer func() { _ = recover() }()
		k.doWith(rev, post("body"), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	}()
	if len(k.inputs.gathered) != 0 || k.inputs.bytes != 0 {
		t.Errorf("%d functions and %d bytes are kept", len(k.inputs.gathered), k.inputs.bytes)
	}
}

func TestReadingAfterTheEndIsPassedOnAndNotKept(t *testing.T) {
	k := newKeeper(t)
	rev := newRevision("shop-00001")
	var body io.Reader
	k.doWith(rev, post("body"), func(_ http.ResponseWriter, r *http.Request) { body = r.Body })
	if got, err := io.ReadAll(body); string(got) != "body" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if k.kept(rev) != nil {
		t.Error("kept it")
	}
}

// The bodies go through a real server and the proxy that the activator uses.
func TestRequestsArriveUnchanged(t *testing.T) {
	type arrived struct {
		Method, URI, Body string
		Length            int64
		Header            http.Header
	}
	var got arrived
	function := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		header := maps.Clone(r.Header)
		header.Del("X-Forwarded-For")
		header.Del("Accept-Encoding")
		got = arrived{r.Method, r.RequestURI, string(body), r.ContentLength, header}
		_, _ = w.Write(body)
	}))
	defer function.Close()
	target, err := url.Parse(function.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	var k keeper
	var rev *v1.Revision
	handled := make(chan struct{}, 1)
	activator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := activatorhandler.WithRevisionAndID(r.Context(), rev, keyOf(rev).NamespacedName)
		k.Handler(proxy).ServeHTTP(w, r.WithContext(ctx))
		handled <- struct{}{}
	}))
	defer activator.Close()

	rapid.Check(t, func(rt *rapid.T) {
		k = newKeeper(t)
		rev = newRevision("shop-00001")
		answer(k.inputs, keyOf(rev), standing{wanted: true})
		body := rapid.SliceOfN(rapid.Byte(), 0, 1<<16).Draw(rt, "body")
		var reader io.Reader = bytes.NewReader(body)
		chunked := rapid.Bool().Draw(rt, "chunked")
		if chunked {
			reader = io.MultiReader(reader)
		}
		r, err := http.NewRequest(http.MethodPut, activator.URL+"/a%2Fb?x=%20", reader)
		if err != nil {
			rt.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer secret"}, "User-Agent": {"test"}, "Content-Type": {"text/plain"}}
		response, err := activator.Client().Do(r)
		if err != nil {
			rt.Fatal(err)
		}
		echoed, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !bytes.Equal(echoed, body) {
			rt.Fatalf("the answer is %d bytes of %d, %v", len(echoed), len(body), err)
		}
		want := arrived{http.MethodPut, "/a%2Fb?x=%20", string(body), int64(len(body)), r.Header.Clone()}
		if chunked {
			want.Length = -1
		}
		// An input is kept when the handler ends, which may be after the answer.
		<-handled
		if len(body) > 0 && !chunked {
			if kept := k.kept(rev); len(kept) != 1 || !bytes.Equal(kept[0].body, body) {
				rt.Fatal("what is kept is not the body")
			}
		}
		got.Header.Del("Content-Length")
		want.Header.Del("Content-Length")
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatal("the request (-sent, +arrived):\n" + diff)
		}
	})
}
