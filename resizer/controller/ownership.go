package controller

import (
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

// changedByOthers finds the resources of a pod that are not at the user allocation without Libra's
// doing. They are 0 in left.
func changedByOthers(pod *corev1.Pod, container string, owed, asked api.Resources) (left api.Resources, changed bool) {
	if asked == owed {
		return owed, false
	}
	// Fields that cannot be read are not known to be Libra's.
	ours, _ := actuate.ResizedLimits(pod, container)
	left = owed
	if asked.CPUMilli != owed.CPUMilli && !ours.Has(corev1.ResourceCPU) {
		left.CPUMilli = 0
	}
	if asked.MemoryBytes != owed.MemoryBytes && !ours.Has(corev1.ResourceMemory) {
		left.MemoryBytes = 0
	}
	return left, left != owed
}
