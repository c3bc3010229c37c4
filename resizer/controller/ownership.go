package controller

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

const resizeSubresource = "resize"

// KeepResizes strips, of the managed fields of a pod that goes into the cache, all
// but those that tell who resized it.
func KeepResizes(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range pod.ManagedFields {
		if entry.Subresource == resizeSubresource {
			kept = append(kept, entry)
		}
	}
	pod.ManagedFields = kept
	return pod, nil
}

func isOurResize(e metav1.ManagedFieldsEntry) bool {
	return e.Subresource == resizeSubresource && e.Manager == actuate.FieldManager
}

// limitNames are the limits of a container that a manager owns, as they are written
// in managed fields.
type limitNames map[string]json.RawMessage

func (n limitNames) has(name corev1.ResourceName) bool {
	_, ok := n["f:"+string(name)]
	return ok
}

// resizedByLibra returns limits of the container that Libra was the last to change,
// in this process or an earlier one: whoever changes a field takes it over.
func resizedByLibra(pod *corev1.Pod, container string) (limitNames, error) {
	i := slices.IndexFunc(pod.ManagedFields, isOurResize)
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
					Limits limitNames `json:"f:limits"`
				} `json:"f:resources"`
			} `json:"f:containers"`
		} `json:"f:spec"`
	}
	if err := json.Unmarshal(pod.ManagedFields[i].FieldsV1.Raw, &fields); err != nil {
		return nil, fmt.Errorf("reading the managed fields of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return fields.Spec.Containers["k:"+string(key)].Resources.Limits, nil
}

// changedByOthers says which resources of a pod are not at the user allocation
// without Libra's doing; those are 0 in the result.
func changedByOthers(pod *corev1.Pod, container string, owed, asked api.Resources) (left api.Resources, changed bool) {
	if asked == owed {
		return owed, false
	}
	// Fields that cannot be read are fields that are not known to be Libra's.
	ours, _ := resizedByLibra(pod, container)
	left = owed
	if asked.CPUMilli != owed.CPUMilli && !ours.has(corev1.ResourceCPU) {
		left.CPUMilli = 0
	}
	if asked.MemoryBytes != owed.MemoryBytes && !ours.has(corev1.ResourceMemory) {
		left.MemoryBytes = 0
	}
	return left, left != owed
}
