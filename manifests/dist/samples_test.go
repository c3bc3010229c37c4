package dist

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"libra.dev/libra/pkg/api"
)

// The samples are only observed, whatever the cluster's mode is, have limits, and run where Pod Security is restricted.
func TestSamplesAreObservedAndBounded(t *testing.T) {
	functions := 0
	for _, o := range rendered(t, testRelease())["libra-samples.yaml"] {
		template, found, err := unstructured.NestedMap(o.Object, "spec", "template")
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			continue
		}
		var pod corev1.PodTemplateSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod); err != nil {
			t.Fatal(err)
		}
		if o.GroupVersionKind().Group == "serving.knative.dev" {
			functions++
			if pod.Labels[api.EnabledLabel] != api.EnabledValue || pod.Annotations[api.ModeAnnotation] != string(api.ModeObserve) {
				t.Errorf("%s has the labels %v and the annotations %v, want it opted in and observed", key(o), pod.Labels, pod.Annotations)
			}
		}
		for _, c := range pod.Spec.Containers {
			if c.Resources.Limits.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: the container has the limits %v, want CPU and memory", key(o), c.Resources.Limits)
			}
			// The container or the pod may set what restricted asks for.
			s, p := c.SecurityContext, pod.Spec.SecurityContext
			if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || len(s.Capabilities.Drop) == 0 ||
				s.RunAsNonRoot == nil && (p == nil || p.RunAsNonRoot == nil) || s.SeccompProfile == nil && (p == nil || p.SeccompProfile == nil) {
				t.Errorf("%s: the container has the security context %v, which is not restricted", key(o), s)
			}
		}
	}
	if functions != 2 {
		t.Errorf("there are %d functions, want 2", functions)
	}
}
