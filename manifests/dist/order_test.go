package dist

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// kubectl deletes the objects of a file in their order. The resizer puts limits back once the settings are gone, and
// keeps its rights until the rest is gone.
func TestOrderInWhichLibraIsDeleted(t *testing.T) {
	objects := rendered(t, testRelease())["libra.yaml"]
	at := func(kind, name string) int {
		t.Helper()
		i := slices.IndexFunc(objects, func(o unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
		if i < 0 {
			t.Fatalf("libra.yaml has no %s %s", kind, name)
		}
		return i
	}
	config := at("ConfigMap", "config-libra")
	for _, o := range objects[:config] {
		if o.GetKind() != "Namespace" {
			t.Errorf("%s comes before the settings", key(o))
		}
	}
	rights := []int{
		at("ServiceAccount", "libra-resizer"), at("Role", "libra-resizer"), at("ClusterRole", "libra-resizer"),
		at("RoleBinding", "libra-resizer"), at("ClusterRoleBinding", "libra-resizer"),
	}
	if first := slices.Min(rights); first != len(objects)-len(rights) {
		t.Errorf("%s comes after the first of the resizer's rights", key(objects[len(objects)-1]))
	}
}

// The resizer's pod has some seconds to put limits back, and then time to finish what it has begun.
func TestResizerEndsAfterAWhile(t *testing.T) {
	for _, o := range rendered(t, testRelease())["libra.yaml"] {
		if o.GetKind() != "Deployment" || o.GetName() != resizer {
			continue
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
			t.Fatal(err)
		}
		pod := d.Spec.Template.Spec
		stop := pod.Containers[0].Lifecycle
		if stop == nil || stop.PreStop == nil || stop.PreStop.Sleep == nil || stop.PreStop.Sleep.Seconds < 3 {
			t.Errorf("its container's lifecycle is %v, want a sleep of 3 s before it is stopped", stop)
		} else if *pod.TerminationGracePeriodSeconds < stop.PreStop.Sleep.Seconds+5 {
			t.Errorf("it has %d s in all", *pod.TerminationGracePeriodSeconds)
		}
		return
	}
	t.Error("there is no resizer")
}
