// Package eligible decides which pods take part in lending and borrowing, for both parts that
// resize pods: when one leaves a pod alone, the other must not change it.
package eligible

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
)

// Obstacle returns why, by its pod's spec, the limits of a container must not be changed; it is
// empty when nothing is in the way. The text is for the pod's owner, and says what to do.
func Obstacle(pod *corev1.Pod, container string) string {
	if r := pod.Spec.Resources; r != nil && len(r.Limits) > 0 {
		return "it has limits for all of its containers together, which would cap the container; unset spec.resources of the pod"
	}
	for _, c := range pod.Spec.Containers {
		switch {
		case c.Name == api.QueueProxyContainer && len(c.Resources.Limits) > 0:
			return "its queue-proxy has limits, so the pod as a whole would have limits that cap the container; unset queue-sidecar-cpu-limit and queue-sidecar-memory-limit"
		case c.Name == container:
			for _, p := range c.ResizePolicy {
				if p.RestartPolicy == corev1.RestartContainer {
					return fmt.Sprintf("the resizePolicy of container %q restarts it when its %s is resized; set it to NotRequired to take part", container, p.ResourceName)
				}
			}
		}
	}
	return ""
}
