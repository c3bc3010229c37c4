package invocation

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/pkg/api"
)

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
			one, other := &request{id: requestID(h)}, &request{id: requestID(h)}
			id := ofClient(one.invocationID())
			if (id == tc.header) != tc.kept || id == "" {
				t.Errorf("the ID of a request with %q is %q, want it kept: %v", tc.header, id, tc.kept)
			}
			if again := ofClient(one.invocationID()); again != id {
				t.Errorf("the ID of the request's next invocation is %q, want %q", again, id)
			}
			if !tc.kept && id == ofClient(other.invocationID()) {
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
