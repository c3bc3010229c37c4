package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

func TestTimeouts(t *testing.T) {
	const second = time.Second
	for _, tc := range []struct {
		name string
		rev  *v1.Revision
		want [3]time.Duration
	}{
		{"no revision", nil, [...]time.Duration{300 * second, 300 * second, 0}},
		{"only the first", &v1.Revision{Spec: v1.RevisionSpec{TimeoutSeconds: ptr.To[int64](45)}},
			[...]time.Duration{45 * second, 0, 0}},
		{"all", &v1.Revision{Spec: v1.RevisionSpec{
			TimeoutSeconds:              ptr.To[int64](45),
			ResponseStartTimeoutSeconds: ptr.To[int64](20),
			IdleTimeoutSeconds:          ptr.To[int64](10),
		}}, [...]time.Duration{45 * second, 20 * second, 10 * second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
			r = r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), tc.rev, types.NamespacedName{}))
			var got [3]time.Duration
			got[0], got[1], got[2] = timeouts(r)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("timeouts() (-want, +got):\n" + diff)
			}
		})
	}
}
