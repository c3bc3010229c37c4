// Package actuate changes the limits of a running container. There are two ways
// to do it: the API patch, which is the record, and the write to the container's
// cgroup, which is the reflex. Both are behind Actuator.
package actuate

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
)

// Actuator sets the limits of one container of a pod, and nothing else of it.
type Actuator interface {
	// SetLimits asks for limits; a resource that is zero in limits is left as it
	// is. It returns when the limits are accepted, which is before they are in
	// force. An implementation that learns the pod's new state stores it in pod.
	SetLimits(ctx context.Context, pod *corev1.Pod, container string, limits api.Resources) error
}
