// Package ceiling computes how much CPU a container may use when its node has some idle. The controller and
// the node agent both go by it, so that neither undoes what the other set.
package ceiling

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// Of returns the most milli CPU that the user container of a pod may have in force under source node: what
// the node can give except for the reserve, and no more than the pod's annotation or, without one, its
// namespace's settings say. It is never below the user allocation, and so always finite. Without an
// allocation (0) it is 0, because nobody else sets a limit that the user did not set.
//
// If the annotation cannot be read, Of returns the allocation and an error.
func Of(pod *corev1.Pod, allocationMilli, allocatableMilli int64, of settings.Settings) (milli int64, err error) {
	if allocationMilli <= 0 {
		return 0, nil
	}
	most := int64(math.MaxInt64)
	if of.Bounds.MaxCPUMilli > 0 {
		most = of.Bounds.MaxCPUMilli
	}
	if value, ok := pod.Annotations[api.MaxCPUAnnotation]; ok {
		if most, err = api.ParseMaxCPU(value); err != nil {
			return allocationMilli, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	// Neither amount means anything below 0, and without negative ones the difference does not overflow.
	spare := max(0, allocatableMilli) - max(0, of.CPUReserveMilli)
	return max(allocationMilli, min(most, spare)), nil
}

// MayChange reports whether the update of a Node may change ceilings of its pods.
func MayChange(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*corev1.Node)
	after, is := e.ObjectNew.(*corev1.Node)
	return ok && is && !before.Status.Allocatable.Cpu().Equal(*after.Status.Allocatable.Cpu())
}
