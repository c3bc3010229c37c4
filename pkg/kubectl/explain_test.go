package kubectl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// tensors are a predictor's answer for a function that needs a fifth of a core and 64 MiB, from 1000 bytes two cores.
const tensors = `{"parameters": {"version": "3", "estimator": "trees", "stage": "modelled", "reason": "it follows the size"}, "outputs": [
	{"name": "cpu_milli_thresholds", "shape": [1], "datatype": "INT64", "data": [1000]}, {"name": "cpu_milli_values", "shape": [2], "datatype": "INT64", "data": [200, 2000]},
	{"name": "memory_bytes_thresholds", "shape": [0], "datatype": "INT64", "data": []}, {"name": "memory_bytes_values", "shape": [1], "datatype": "INT64", "data": [67108864]},
	{"name": "duration_ms_thresholds", "shape": [0], "datatype": "INT64", "data": []}, {"name": "duration_ms_values", "shape": [1], "datatype": "INT64", "data": [800]},
	{"name": "cpu_time_us_thresholds", "shape": [0], "datatype": "INT64", "data": []}, {"name": "cpu_time_us_values", "shape": [1], "datatype": "INT64", "data": [900000]},
	{"name": "unknown", "shape": [3], "datatype": "INT64", "data": [2000, 67108864, 800]}, {"name": "unknown_cpu_time_us", "shape": [1], "datatype": "INT64", "data": [900000]},
	{"name": "offset", "shape": [2], "datatype": "INT64", "data": [0, 0]}, {"name": "largest", "shape": [2], "datatype": "INT64", "data": [2000, 67108864]},
	{"name": "largest_size", "shape": [1], "datatype": "INT64", "data": [1000000]}]}`

// functions are a Service in the namespace shop with its revision, a pod of it on a node, and a predictor.
func functions(change func(*servingv1.Revision)) []client.Object {
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "thumb-00002", Labels: map[string]string{api.EnabledLabel: api.EnabledValue},
		Annotations: map[string]string{api.ModeAnnotation: "full", autoscaling.TargetBurstCapacityKey: "-1"},
	}}
	revision.Spec.ContainerConcurrency = ptr.To[int64](1)
	revision.Spec.Containers = []corev1.Container{{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: list("500m", "256Mi"), Requests: list("100m", "64Mi")}}}
	if change != nil {
		change(revision)
	}
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "thumb"}}
	service.Status.LatestReadyRevisionName = revision.Name
	node := worker()
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}
	return []client.Object{
		service, revision, node, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "thumb-1", Labels: map[string]string{serving.RevisionLabelKey: revision.Name}}, Spec: corev1.PodSpec{NodeName: "worker"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: "libra-predictor-1"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: predictorPort, ContainerPort: 8080}}}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		},
	}
}

func TestExplain(t *testing.T) {
	to := forwardedTo(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if want := "/v2/models/shop.thumb-00002/infer"; r.URL.Path != want || !json.Valid(body) {
			http.Error(w, fmt.Sprintf("asked for %s, want %s", r.URL.Path, want), http.StatusBadRequest)
			return
		}
		io.WriteString(w, tensors)
	})
	config := func(data map[string]string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}, Data: data}
	}
	for name, tc := range map[string]struct {
		objects []client.Object
		size    int64
	}{
		"explain-borrower": {append(functions(nil), config(nil)), 5000},
		"explain-donor":    {append(functions(nil), config(map[string]string{"max-mode": "lend", "source": "owners"})), 10},
		"explain-path": {append(functions(func(r *servingv1.Revision) {
			r.Annotations = map[string]string{api.ModeAnnotation: "fully", autoscaling.TargetBurstCapacityKey: "211"}
		}), config(nil)), api.UnknownSize},
		"explain-unbounded": {append(functions(func(r *servingv1.Revision) { r.Spec.ContainerConcurrency = ptr.To[int64](0) }), config(nil)), 5000},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := explain(t.Context(), cluster(tc.objects...), to, client.ObjectKey{Namespace: "shop", Name: "thumb"}, tc.size, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := (&output{outputTable}).print(&out, e.document()); err != nil {
				t.Fatal(err)
			}
			isGolden(t, name, out.String())
			out.Reset()
			if err := (&output{"json"}).print(&out, e.document()); err != nil || !strings.Contains(out.String(), `"cpu_milli"`) {
				t.Errorf("as JSON it is (%v)\n%s", err, out.String())
			}
		})
	}
}

// noModel answers as the predictor does for a function that it does not know.
func noModel(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusNotFound)
	io.WriteString(w, `{"error":"no such model"}`)
}

// The explanation names the cluster's HarvestPolicy if that sets a value, and the namespace's if that does.
func TestExplainNamesThePolicyThatCounts(t *testing.T) {
	policy := func(namespace, mode, source, domain string) client.Object {
		return &v1alpha1.HarvestPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.HarvestPolicyName},
			Spec:       v1alpha1.HarvestPolicySpec{Mode: v1alpha1.Mode(mode), Source: v1alpha1.Source(source), Domain: domain},
		}
	}
	to := forwardedTo(t, noModel)
	const byDefault, byNamespace = "HarvestPolicy libra-system/default", "the namespace's HarvestPolicy"
	for name, tc := range map[string]struct {
		policies                   []client.Object
		mode, source, domain       string
		modeBy, sourceBy, domainBy string
	}{
		"the cluster's":   {[]client.Object{policy(settings.Namespace, "lend", "owners", "all")}, "lend", "owners", "all", byDefault, byDefault, byDefault},
		"the namespace's": {[]client.Object{policy(settings.Namespace, "lend", "owners", "all"), policy("shop", "full", "node", "team")}, "full", "node", "team", byNamespace, byNamespace, byNamespace},
		"one of each":     {[]client.Object{policy(settings.Namespace, "lend", "", ""), policy("shop", "", "owners", "team")}, "lend", "owners", "team", byDefault, byNamespace, byNamespace},
	} {
		objects := append(functions(func(r *servingv1.Revision) { r.Annotations = nil }), tc.policies...)
		objects = append(objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}})
		e, err := explain(t.Context(), cluster(objects...), to, client.ObjectKey{Namespace: "shop", Name: "thumb"}, 10, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if string(e.Mode) != tc.mode || e.ModeBy != tc.modeBy || string(e.Source) != tc.source || e.SourceBy != tc.sourceBy || e.Domain != tc.domain || e.DomainBy != tc.domainBy {
			t.Errorf("%s: mode %s by %q, source %s by %q, domain %q by %q; want %+v", name, e.Mode, e.ModeBy, e.Source, e.SourceBy, e.Domain, e.DomainBy, tc)
		}
	}
}

// A mode that is not in force because of a bound is not blamed on whoever asked for more.
func TestExplainNamesWhatBoundsTheMode(t *testing.T) {
	to := forwardedTo(t, noModel)
	objects := append(functions(func(r *servingv1.Revision) { r.Annotations = nil }),
		&v1alpha1.HarvestPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: v1alpha1.HarvestPolicyName}, Spec: v1alpha1.HarvestPolicySpec{Mode: "full"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}, Data: map[string]string{"max-mode": "observe"}})
	e, err := explain(t.Context(), cluster(objects...), to, client.ObjectKey{Namespace: "shop", Name: "thumb"}, 10, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if want := `the namespace's HarvestPolicy says "full", but the cluster and the namespace allow only modes up to observe`; e.Mode != api.ModeObserve || e.ModeBy != want {
		t.Errorf("mode %s by %q, want observe by %q", e.Mode, e.ModeBy, want)
	}
}

func TestExplainWithoutPrediction(t *testing.T) {
	status := func(code int) forward {
		return forwardedTo(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	for name, tc := range map[string]struct {
		kube client.Client
		to   forward
		want string
	}{
		"not seen":     {cluster(functions(nil)...), forwardedTo(t, noModel), "none yet"},
		"no way there": {cluster(functions(nil)...), status(http.StatusNotFound), "answered 404 Not Found"},
		"failing":      {cluster(functions(nil)...), status(http.StatusInternalServerError), "answered 500 Internal Server Error"},
		"no predictor": {cluster(functions(nil)[:5]...), status(http.StatusOK), "no predictor is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := explain(t.Context(), tc.kube, tc.to, client.ObjectKey{Namespace: "shop", Name: "thumb"}, 1, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := (&output{outputTable}).print(&out, e.document()); err != nil || !strings.Contains(out.String(), tc.want) || !strings.Contains(out.String(), "500m/256Mi") {
				t.Errorf("%v: there is no %q in\n%s", err, tc.want, out.String())
			}
		})
	}
}

func TestExplainRefuses(t *testing.T) {
	optedOut := functions(func(r *servingv1.Revision) { r.Labels = nil })
	for name, tc := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"no Service":   {nil, "reading Service shop/thumb"},
		"no revision":  {[]client.Object{&servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "thumb"}}}, "has no ready revision"},
		"not opted in": {optedOut, "has not opted in"},
	} {
		if _, err := explain(t.Context(), cluster(tc.objects...), nil, client.ObjectKey{Namespace: "shop", Name: "thumb"}, 1, time.Now()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: the error is %v, want %q in it", name, err, tc.want)
		}
	}
	for _, size := range []string{"-1", "much", "1.5"} {
		if got, err := parseSize(size); err == nil {
			t.Errorf("--size %s is taken as %d", size, got)
		}
	}
}
