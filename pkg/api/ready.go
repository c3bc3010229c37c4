package api

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodReady reports whether the kubelet says that pod is ready, which a pod that is being deleted may be.
func PodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
