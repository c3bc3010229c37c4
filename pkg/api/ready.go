package api

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodReady says whether the kubelet has said that the pod is ready, as one may be that is being deleted.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
