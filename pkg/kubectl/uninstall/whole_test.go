package uninstall

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"libra.dev/libra/resizer/actuate"
)

func limits(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

// resized is a pod whose CPU limit a manager was the last to change.
func resized(manager, spec, inForce string) *corev1.Pod {
	status := limits(inForce)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "p", Labels: map[string]string{serving.RevisionLabelKey: "f"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: manager, Subresource: "resize", FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil,
				`{"f:spec":{"f:containers":{"k:{\"name\":\"user-container\"}":{"f:resources":{"f:limits":{"f:cpu":{}}}}}}}`)}}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "queue-proxy", Resources: limits("9")}, {Name: "user-container", Resources: limits(spec)}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "user-container", Resources: &status}}},
	}
}

func TestAPodIsWholeWhenLibraHasLeftItsRevisionsLimits(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := servingv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "f"}}
	revision.Spec.Containers = []corev1.Container{{Resources: limits("500m")}}
	u := Uninstall{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(revision).Build()}
	gone := resized(actuate.FieldManager, "2", "2")
	gone.Labels[serving.RevisionLabelKey] = "deleted"
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		whole bool
	}{
		"at what it is owed":               {resized(actuate.FieldManager, "500m", "500m"), true},
		"above it":                         {resized(actuate.FieldManager, "2", "2"), false},
		"above it until the kubelet looks": {resized(actuate.FieldManager, "500m", "2"), false},
		"as another manager has it":        {resized("vpa", "2", "2"), true},
		"of a Revision that goes":          {gone, true},
	} {
		why, err := u.away(t.Context(), c.pod)
		if err != nil {
			t.Fatal(err)
		}
		if (why == "") != c.whole {
			t.Errorf("%s: it says %q", name, why)
		}
	}
}
