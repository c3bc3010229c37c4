package actuate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"libra.dev/libra/pkg/api"
)

// The managed fields are those that the API server's own code makes.
func TestResizedLimits(t *testing.T) {
	res := func(cpuMilli, mib int64) api.Resources {
		return api.Resources{CPUMilli: cpuMilli, MemoryBytes: mib << 20}
	}
	owed := res(500, 256)
	type change struct {
		manager string
		limits  api.Resources
	}
	tests := map[string]struct {
		changes     []change
		cpu, memory bool
	}{
		"nobody":                 {},
		"Libra, both":            {changes: []change{{FieldManager, res(300, 192)}}, cpu: true, memory: true},
		"Libra, one":             {changes: []change{{FieldManager, res(500, 192)}}, memory: true},
		"another":                {changes: []change{{"vpa", res(300, 192)}}},
		"another after Libra":    {changes: []change{{FieldManager, res(300, 192)}, {"vpa", res(400, 192)}}, memory: true},
		"Libra after another":    {changes: []change{{"vpa", res(400, 192)}, {FieldManager, res(300, 192)}}, cpu: true},
		"Libra, there and back":  {changes: []change{{FieldManager, res(300, 192)}, {FieldManager, owed}}, cpu: true, memory: true},
		"another to what it was": {changes: []change{{FieldManager, res(300, 192)}, {"vpa", res(300, 192)}}, cpu: true, memory: true},
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fields := managedfieldstest.NewTestFieldManagerSubresource(applyconfigurations.NewTypeConverter(scheme),
				corev1.SchemeGroupVersion.WithKind("Pod"), resizeSubresource)
			pod := &corev1.Pod{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{
					{Name: api.UserContainer, Resources: corev1.ResourceRequirements{Limits: owed.List()}},
				}},
			}
			if err := fields.Update(pod.DeepCopy(), "creator"); err != nil {
				t.Fatal(err)
			}
			for _, c := range tc.changes {
				pod.Spec.Containers[0].Resources.Limits = c.limits.List()
				pod.ManagedFields = fields.ManagedFields()
				if err := fields.Update(pod.DeepCopy(), c.manager); err != nil {
					t.Fatal(err)
				}
			}
			pod.ManagedFields = fields.ManagedFields()
			if _, err := KeepResizes(pod); err != nil {
				t.Fatal(err)
			}
			if got := Resized(pod); got != (tc.cpu || tc.memory) {
				t.Errorf("the pod is resized by Libra: %v", got)
			}
			got, err := ResizedLimits(pod, api.UserContainer)
			if err != nil {
				t.Fatal(err)
			}
			if cpu, memory := got.Has(corev1.ResourceCPU), got.Has(corev1.ResourceMemory); cpu != tc.cpu || memory != tc.memory {
				t.Errorf("cpu %v, memory %v; want %v, %v", cpu, memory, tc.cpu, tc.memory)
			}
		})
	}
}

func TestKeepResizesStripsTheRest(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", Subresource: "status"}, {Manager: FieldManager, Subresource: resizeSubresource}, {Manager: "creator"},
	}}}
	if _, err := KeepResizes(pod); err != nil {
		t.Fatal(err)
	}
	if got := pod.ManagedFields; len(got) != 1 || got[0].Subresource != resizeSubresource {
		t.Errorf("managed fields %v, want those of the resize alone", got)
	}
}
