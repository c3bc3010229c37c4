package invocation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

func TestSizeInJSON(t *testing.T) {
	long := `{"a": "` + strings.Repeat("x", maxPeeked) + `", "n": 1}`
	for _, tc := range []struct {
		name, pointer, body, encoding string
		want                          int64
		wantErr                       string
	}{
		{name: "number", pointer: "/n", body: `{"n": 1234}`, want: 1234},
		{name: "after other members", pointer: "/n", body: `{"a": {"n": 1}, "b": [1, {"n": 2}], "c": "n", "n": 7}`, want: 7},
		{name: "within an object", pointer: "/a/n", body: `{"n": 1, "a": {"m": 2, "n": 3}}`, want: 3},
		{name: "within an array", pointer: "/a/1/n", body: `{"a": [{"n": 1}, {"n": 2}]}`, want: 2},
		{name: "escaped", pointer: "/a~1b~0c", body: `{"a/b~c": 5}`, want: 5},
		{name: "a tilde before a one", pointer: "/~01", body: `{"~1": 5}`, want: 5},
		{name: "without a name", pointer: "/", body: `{"": 5}`, want: 5},
		{name: "text, as gRPC writes 64-bit numbers", pointer: "/n", body: `{"n": "77"}`, want: 77},
		{name: "text that is no number", pointer: "/n", body: `{"n": "big"}`, want: api.UnknownSize, wantErr: `json /n is not a number of bytes from 0 to`},
		{name: "with an exponent", pointer: "/n", body: `{"n": 1e3}`, want: 1000},
		{name: "as a float", pointer: "/n", body: `{"n": 1000.0}`, want: 1000},
		{name: "the first of two", pointer: "/n", body: `{"n": 1, "n": 2}`, want: 1},
		{name: "before what is not JSON", pointer: "/n", body: `{"n": 1, oops`, want: 1},
		{name: "absent", pointer: "/n", body: `{"m": 1}`, want: api.UnknownSize},
		{name: "past an array's end", pointer: "/2", body: `[1, 2]`, want: api.UnknownSize},
		{name: "of no index", pointer: "/01", body: `[1, 2]`, want: api.UnknownSize},
		{name: "within a number", pointer: "/n/m", body: `{"n": 1}`, want: api.UnknownSize},
		{name: "no body", pointer: "/n", want: api.UnknownSize},
		{name: "too long to look at", pointer: "/n", body: long, want: api.UnknownSize},
		{name: "half", pointer: "/n", body: `{"n": 0.5}`, want: api.UnknownSize, wantErr: `json /n is not a number of bytes from 0 to`},
		{name: "negative", pointer: "/n", body: `{"n": -1}`, want: api.UnknownSize, wantErr: `json /n is not a number`},
		{name: "absurd", pointer: "/n", body: `{"n": 1e300}`, want: api.UnknownSize, wantErr: `json /n is not a number`},
		{name: "more than a float holds", pointer: "/n", body: `{"n": 1e999}`, want: api.UnknownSize, wantErr: `json /n is not a number`},
		{name: "an object", pointer: "/n", body: `{"n": {}}`, want: api.UnknownSize, wantErr: `json /n: an object is not a number`},
		{name: "an array", pointer: "/n", body: `{"n": []}`, want: api.UnknownSize, wantErr: `json /n: an array is not a number`},
		{name: "null", pointer: "/n", body: `{"n": null}`, want: api.UnknownSize, wantErr: `json /n: null is not a number`},
		{name: "true", pointer: "/n", body: `{"n": true}`, want: api.UnknownSize, wantErr: `json /n: true is not a number`},
		{name: "not JSON", pointer: "/n", body: `n=1`, want: api.UnknownSize, wantErr: `json /n: the body is not JSON: invalid character '='`},
		{name: "cut", pointer: "/n", body: `{"a": [1, 2`, want: api.UnknownSize, wantErr: `json /n: the body is not JSON`},
		{name: "compressed", pointer: "/n", body: `{"n": 1}`, encoding: "gzip", want: api.UnknownSize, wantErr: `json /n: the body has a Content-Encoding, want none`},
		{name: "not compressed", pointer: "/n", body: `{"n": 1}`, encoding: "identity", want: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(tc.body))
				r.Header.Set("Content-Encoding", tc.encoding)
				got, body, err := sizeOf(r, "json:"+tc.pointer, new(budget))
				if got != tc.want {
					t.Errorf("sizeOf() = %d, want %d", got, tc.want)
				}
				switch {
				case tc.wantErr == "" && err != nil:
					t.Errorf("sizeOf() = %v, want no error", err)
				case tc.wantErr != "" && (err == nil || err.field != fieldJSON || !strings.Contains(err.Error(), tc.wantErr)):
					t.Errorf("sizeOf() = %v, want an error of the JSON body with %q", err, tc.wantErr)
				}
				if read, err := io.ReadAll(body); err != nil || string(read) != tc.body {
					t.Errorf("the body is %.40q, %v, want %.40q", read, err, tc.body)
				}
			})
		})
	}
}

func TestSizeInJSONOfAnUndeclaredLength(t *testing.T) {
	wantNotReadAhead(t, httptest.NewRequest(http.MethodPost, "http://example.com/", io.NopCloser(strings.NewReader(`{"n": 1}`))))
}

// Trailers are written into the request when its body ends, and the proxy copies them when it begins.
func TestBodyBeforeTrailersIsNotReadAhead(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(`{"n": 1}`))
	r.Trailer = http.Header{"X-Checksum": nil}
	wantNotReadAhead(t, r)
}

// Once the connection is upgraded, whoever upgraded it reads from it.
func TestBodyOfAnUpgradeIsNotReadAhead(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(`{"n": 1}`))
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	wantNotReadAhead(t, r)
}

// A function may refuse a request by its header. Its body is then not sent at all.
func TestBodyThatIsHeldBackIsNotReadAhead(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(`{"n": 1}`))
	r.Header.Set("Expect", "100-continue")
	wantNotReadAhead(t, r)
}

func wantNotReadAhead(t *testing.T, r *http.Request) {
	t.Helper()
	if size, body, err := sizeOf(r, "json:/n", new(budget)); size != api.UnknownSize || body != r.Body || err != nil {
		t.Errorf("sizeOf() = %d, %v, want an unknown size and the same body", size, err)
	}
}

// The request does not wait for a body that is not there in time. The body reaches the function as it arrives.
func TestSlowBodyIsPassedOnAsItArrives(t *testing.T) {
	arriving, sending := io.Pipe()
	r := httptest.NewRequest(http.MethodPost, "http://example.com/", arriving)
	r.ContentLength = 8
	size, body, err := sizeOf(r, "json:/n", new(budget))
	if size != api.UnknownSize || err != nil {
		t.Fatalf("sizeOf() = %d, %v, want an unknown size", size, err)
	}
	for _, part := range []string{`{"n"`, `: 1}`} {
		go io.WriteString(sending, part)
		got := make([]byte, len(part))
		if _, err := io.ReadFull(body, got); err != nil || string(got) != part {
			t.Fatalf("read %q, %v, want %q", got, err, part)
		}
	}
	sending.Close()
	if n, err := body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v after the end, want EOF", n, err)
	}
}

// A client that leaves meanwhile is not waited for.
func TestPeekEndsWithItsRequest(t *testing.T) {
	arriving, sending := io.Pipe()
	defer sending.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://example.com/", arriving)
	r.ContentLength = 8
	size, body, err := sizeOf(r, "json:/n", new(budget))
	if size != api.UnknownSize || err != nil {
		t.Errorf("sizeOf() = %d, %v, want an unknown size", size, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	if _, err := body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
		t.Errorf("read after Close: %v, want %v", err, http.ErrBodyReadAfterClose)
	}
}

// However a body arrives, and whatever ends it, its reader gets the same.
func TestReadAheadBodyIsTheBody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "sent"), rapid.SampledFrom([]int{1, 100}).Draw(t, "times"))
		ends := rapid.SampledFrom([]error{io.EOF, io.ErrUnexpectedEOF}).Draw(t, "ends with")
		var of io.Reader = io.MultiReader(bytes.NewReader(sent), iotest.ErrReader(ends))
		if rapid.Bool().Draw(t, "byte by byte") {
			of = iotest.OneByteReader(of)
		}
		if rapid.Bool().Draw(t, "ends with its last bytes") {
			of = iotest.DataErrReader(of)
		}
		var ahead budget
		declared := rapid.Int64Range(1, int64(len(sent))+1).Draw(t, "declared") // Go's servers give no more than that
		ahead.reserve(declared)
		body := readAhead(of, declared, &ahead)
		if rapid.Bool().Draw(t, "peeked at in vain") {
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			body.peek(gone, peekFor)
		}
		var got []byte
		var err error
		for err == nil {
			p := make([]byte, rapid.SampledFrom([]int{1, 50, 3000}).Draw(t, "asked for"))
			var n int
			n, err = body.Read(p)
			got = append(got, p[:n]...)
		}
		if !bytes.Equal(got, sent) || !errors.Is(err, ends) {
			t.Fatalf("read %d bytes and %v, want %d and %v", len(got), err, len(sent), ends)
		}
		if n, err := body.Read(make([]byte, 1)); n != 0 || !errors.Is(err, ends) {
			t.Fatalf("read %d bytes and %v after the end, want %v again", n, err, ends)
		}
		if got := ahead.Load(); got != 0 {
			t.Fatalf("%d bytes are held after the end", got)
		}
	})
}

// Thousands of requests may wait, each with its body. Past the bound on all such bodies together, none is read ahead
// until one has been read to its end, or its request is over, however it ends.
func TestBodiesReadAheadAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newRankingManager(t, &recorder{}, full, nil)
		rev := newRevision()
		rev.Annotations[api.InputSizeAnnotation] = "json:/n"
		document := `{"n": 7` + strings.Repeat(" ", maxPeeked-len(`{"n": 7}`)) + `}`
		arriving := func() *http.Request {
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(document))
			return r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), rev, revID))
		}
		var held []io.ReadCloser
		hold := func() {
			t.Helper()
			size, body := m.sizeOf(arriving(), rev)
			if size != 7 {
				t.Fatalf("sizeOf() = %d beside %d others, want 7", size, len(held))
			}
			held = append(held, body)
		}
		noRoom := func() {
			t.Helper()
			r := arriving()
			if size, body := m.sizeOf(r, rev); size != api.UnknownSize || body != r.Body {
				t.Errorf("sizeOf() = %d beside %d others, want an unknown size and the same body", size, len(held))
			}
		}
		for range maxAhead / maxPeeked {
			hold()
		}
		noRoom()

		if got, err := io.ReadAll(held[0]); string(got) != document || err != nil {
			t.Errorf("read %d bytes, %v, want %d", len(got), err, len(document))
		}
		held[0].Read(make([]byte, 1)) // at its end once more
		hold()
		noRoom()

		for name, next := range map[string]http.HandlerFunc{
			"unread":            func(http.ResponseWriter, *http.Request) {},
			"half read":         func(_ http.ResponseWriter, r *http.Request) { r.Body.Read(make([]byte, 100)) },
			"read":              func(_ http.ResponseWriter, r *http.Request) { io.ReadAll(r.Body) },
			"closed":            func(_ http.ResponseWriter, r *http.Request) { r.Body.Close() },
			"closed when read":  func(_ http.ResponseWriter, r *http.Request) { io.ReadAll(r.Body); r.Body.Close() },
			"whose client left": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		} {
			held[1].Close()
			func() {
				defer func() { recover() }()
				m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if size := requestFrom(r.Context()).size; size != 7 {
						t.Errorf("the size of a request whose body is then %s is %d, want 7", name, size)
					}
					noRoom()
					next(w, r)
				})).ServeHTTP(httptest.NewRecorder(), arriving())
			}()
			hold()
			noRoom()
			held = slices.Delete(held, 1, 2)
		}
	})
}

// Clients that declare the longest body and send nothing of it do not keep others' sizes from being read.
func TestClientsThatStallLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead budget
		request := func(body io.Reader, length int64) *http.Request {
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", body)
			r.ContentLength = length
			return r
		}
		for range 2 * maxAhead / maxPeeked {
			arriving, sending := io.Pipe()
			defer sending.Close()
			if size, _, err := sizeOf(request(arriving, maxPeeked), "json:/n", &ahead); size != api.UnknownSize || err != nil {
				t.Fatalf("sizeOf() = %d, %v, want an unknown size", size, err)
			}
		}
		if size, _, err := sizeOf(request(strings.NewReader(`{"n": 7}`), 8), "json:/n", &ahead); size != 7 || err != nil {
			t.Errorf("sizeOf() = %d, %v beside clients that stall, want 7", size, err)
		}
	})
}

// The part of a body that has arrived is held until no more comes, even if its request is over.
func TestBodyThatStillArrivesIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead budget
		arriving, sending := io.Pipe()
		r := httptest.NewRequest(http.MethodPost, "http://example.com/", arriving)
		r.ContentLength = 8
		size, body, err := sizeOf(r, "json:/n", &ahead)
		if size != api.UnknownSize || err != nil {
			t.Fatalf("sizeOf() = %d, %v, want an unknown size", size, err)
		}
		body.Close()
		synctest.Wait()
		if got := ahead.Load(); got != 8 {
			t.Errorf("%d bytes are held while the body arrives, want 8", got)
		}
		sending.Close()
		synctest.Wait()
		if got := ahead.Load(); got != 0 {
			t.Errorf("%d bytes are held after that, want none", got)
		}
	})
}

// The size is the request's, and the function has its body.
func TestSizeInJSONOfARequest(t *testing.T) {
	rec := &recorder{}
	rev := newRevision()
	rev.Annotations[api.InputSizeAnnotation] = "json:/rows"
	c := newChain(t, chainOptions{pool: rec, rev: rev})
	for _, body := range []string{`{"rows": 4321}`, `rows=1`} {
		if status, echoed := c.send(t, body); status != http.StatusOK || !strings.Contains(echoed, body) {
			t.Errorf("status %d, %q, want 200 and what was sent, %q", status, echoed, body)
		}
	}
	drain(t, c.manager.lifecycle)
	if len(rec.begins) != 2 || rec.begins[0].Size != 4321 || rec.begins[1].Size != api.UnknownSize {
		t.Errorf("Begins = %+v, want one of the size 4321 and one of unknown size", rec.begins)
	}
	if diff := cmp.Diff(map[string]int64{fieldJSON: 1}, c.counts(t, "libra.sizes.refused")); diff != "" {
		t.Error("libra.sizes.refused (-want, +got):\n" + diff)
	}
}

func BenchmarkSizeInJSON(b *testing.B) {
	for _, kib := range []int{1, 64} {
		body := fmt.Sprintf(`{"rows": [%s1], "n": 7}`, strings.Repeat(`{"a": 1.5, "b": "text"}, `, (kib<<10-40)/25))
		b.Run(fmt.Sprint(kib, " KiB"), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(body))
				if size, _, err := sizeOf(r, "json:/n", new(budget)); size != 7 || err != nil {
					b.Fatal(size, err)
				}
			}
		})
	}
}
