package actuate

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"libra.dev/libra/pkg/api"
)

func TestLimitsPatchNamesOnlyLimits(t *testing.T) {
	tests := map[string]struct {
		limits api.Resources
		want   string
	}{
		"both": {
			limits: api.Resources{CPUMilli: 300, MemoryBytes: 256 << 20},
			want:   `{"metadata":{"uid":"u1"},"spec":{"containers":[{"name":"user-container","resources":{"limits":{"cpu":"300m","memory":"256Mi"}}}]}}`,
		},
		"cpu only": {
			limits: api.Resources{CPUMilli: 1500},
			want:   `{"metadata":{"uid":"u1"},"spec":{"containers":[{"name":"user-container","resources":{"limits":{"cpu":"1500m"}}}]}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := limitsPatch("u1", "user-container", tc.limits)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSetLimits(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "queue-proxy", Resources: corev1.ResourceRequirements{Requests: list("25m", "50Mi")}},
			{Name: "user-container", Resources: corev1.ResourceRequirements{Requests: list("100m", "64Mi"), Limits: list("500m", "256Mi")}},
		}},
	}
	var subresources, managers []string
	kube := fake.NewClientBuilder().WithObjects(pod).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			subresources = append(subresources, name)
			var options client.SubResourcePatchOptions
			managers = append(managers, options.ApplyOptions(opts).FieldManager)
			return c.SubResource(name).Patch(ctx, obj, patch, opts...)
		},
	}).Build()

	got := pod.DeepCopy()
	if err := SetLimits(t.Context(), kube, got, "user-container", api.Resources{CPUMilli: 900}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"resize"}, subresources); diff != "" {
		t.Errorf("subresources patched (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{FieldManager}, managers); diff != "" {
		t.Errorf("field managers (-want +got):\n%s", diff)
	}
	want := pod.DeepCopy()
	want.Spec.Containers[1].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("900m")
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("pod after the patch (-want +got):\n%s", diff)
	}
	if err := SetLimits(t.Context(), kube, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gone"}}, "user-container", api.Resources{CPUMilli: 1}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("SetLimits of a pod that is gone = %v, want a not-found error that can be told by errors.As", err)
	}
}
