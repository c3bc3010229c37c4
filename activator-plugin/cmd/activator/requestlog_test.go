package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	pkghttp "knative.dev/serving/pkg/http"
	o11yconfigmap "knative.dev/serving/pkg/observability/configmap"
)

func TestRequestLog(t *testing.T) {
	var out bytes.Buffer
	h, err := pkghttp.NewRequestLogHandler(http.NotFoundHandler(), &out, "", requestLogInput, false)
	if err != nil {
		t.Fatal("NewRequestLogHandler() =", err)
	}
	update := updateRequestLog(h, zaptest.NewLogger(t).Sugar())
	rev := &v1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rev", Labels: map[string]string{
		serving.ServiceLabelKey:       "svc",
		serving.ConfigurationLabelKey: "cfg",
	}}}

	for _, step := range []struct {
		name string
		data map[string]string
		want string
	}{
		{"off", map[string]string{}, ""},
		{"on", map[string]string{
			"logging.enable-request-log":   "true",
			"logging.request-log-template": "{{.Revision.Namespace}}/{{.Revision.Name}} {{.Revision.Service}} {{.Revision.Configuration}} {{.Response.Code}}",
		}, "ns/rev svc cfg 404\n"},
		{"a bad map changes nothing", map[string]string{"logging.enable-request-log": "true", "logging.request-log-template": "{{"}, "ns/rev svc cfg 404\n"},
		{"off again", map[string]string{"logging.enable-request-log": "false"}, ""},
	} {
		out.Reset()
		update(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: o11yconfigmap.Name()}, Data: step.data})
		r := httptest.NewRequest(http.MethodGet, "http://example.com", nil)
		ctx := activatorhandler.WithRevisionAndID(r.Context(), rev, types.NamespacedName{Namespace: "ns", Name: "rev"})
		h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		if diff := cmp.Diff(step.want, out.String()); diff != "" {
			t.Errorf("%s: the log (-want, +got):\n%s", step.name, diff)
		}
	}
}
