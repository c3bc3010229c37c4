package actuate

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
)

const resizeSubresource = "resize"

// KeepResizes strips the managed fields of a pod that goes into a cache, except those that tell who
// resized it.
func KeepResizes(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	pod.ManagedFields = Resizes(pod)
	return pod, nil
}

// Resizes returns those of a pod's managed fields that tell who resized it.
func Resizes(pod *corev1.Pod) (resizes []metav1.ManagedFieldsEntry) {
	for _, entry := range pod.ManagedFields {
		if entry.Subresource == resizeSubresource {
			resizes = append(resizes, entry)
		}
	}
	return resizes
}

func isOurs(e metav1.ManagedFieldsEntry) bool {
	return e.Subresource == resizeSubresource && e.Manager == FieldManager
}

// Resized reports whether Libra was the last to change some limit of the pod. The pod's metadata are
// enough.
func Resized(pod metav1.Object) bool { return slices.ContainsFunc(pod.GetManagedFields(), isOurs) }

// LimitNames are the limits of a container that a manager owns, as managed fields write them.
type LimitNames map[string]json.RawMessage

// Has reports whether the limit is among them.
func (n LimitNames) Has(name corev1.ResourceName) bool {
	_, ok := n["f:"+string(name)]
	return ok
}

// ResizedLimits returns the limits of the container that Libra was the last to change, in this process or
// another: a manager that changes a field takes it over.
func ResizedLimits(pod *corev1.Pod, container string) (LimitNames, error) {
	i := slices.IndexFunc(pod.ManagedFields, isOurs)
	if i < 0 || pod.ManagedFields[i].FieldsV1 == nil {
		return nil, nil
	}
	key, err := json.Marshal(struct {
		Name string `json:"name"`
	}{container})
	if err != nil {
		return nil, fmt.Errorf("naming container %q: %w", container, err)
	}
	var fields struct {
		Spec struct {
			Containers map[string]struct {
				Resources struct {
					Limits LimitNames `json:"f:limits"`
				} `json:"f:resources"`
			} `json:"f:containers"`
		} `json:"f:spec"`
	}
	if err := json.Unmarshal(pod.ManagedFields[i].FieldsV1.Raw, &fields); err != nil {
		return nil, fmt.Errorf("reading the managed fields of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return fields.Spec.Containers["k:"+string(key)].Resources.Limits, nil
}

// ChangedByOthers finds the resources of a pod that are not at the user allocation without Libra's
// doing: its container is owed one thing, and its spec asks for another. They are 0 in left.
func ChangedByOthers(pod *corev1.Pod, container string, owed, asked api.Resources) (left api.Resources, changed bool) {
	if asked == owed {
		return owed, false
	}
	// Fields that cannot be read are not known to be Libra's.
	ours, _ := ResizedLimits(pod, container)
	left = owed
	if asked.CPUMilli != owed.CPUMilli && !ours.Has(corev1.ResourceCPU) {
		left.CPUMilli = 0
	}
	if asked.MemoryBytes != owed.MemoryBytes && !ours.Has(corev1.ResourceMemory) {
		left.MemoryBytes = 0
	}
	return left, left != owed
}
