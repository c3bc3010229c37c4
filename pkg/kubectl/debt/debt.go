// Package debt finds the limits set by Libra in which a pod differs from its Revision.
package debt

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

// Debt is what a pod's user container is owed and does not have.
type Debt struct {
	Container string
	Owed      api.Resources // the Revision's limits
	Has       api.Resources // the limits in the pod's spec
	// Due are the limits to set. A limit is 0 if it is right, if another manager changed it, or if the owner did not set it.
	Due api.Resources
	// Late says that the limits that the kubelet has in force are not what is owed.
	Late bool
}

// Of returns the debt of a pod of the revision. It fails if the pod's managed fields cannot be read.
func Of(pod *corev1.Pod, revision *servingv1.Revision) (Debt, error) {
	user := revision.Spec.GetContainer()
	d := Debt{Container: cmp.Or(user.Name, api.UserContainer), Owed: api.FromList(user.Resources.Limits)}
	ours, err := actuate.ResizedLimits(pod, d.Container)
	if err != nil {
		return Debt{}, err
	}
	managed := d.Owed
	if !ours.Has(corev1.ResourceCPU) {
		managed.CPUMilli = 0
	}
	if !ours.Has(corev1.ResourceMemory) {
		managed.MemoryBytes = 0
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == d.Container {
			d.Has = api.FromList(c.Resources.Limits)
		}
	}
	d.Due = managed
	if d.Has.CPUMilli == managed.CPUMilli {
		d.Due.CPUMilli = 0
	}
	if d.Has.MemoryBytes == managed.MemoryBytes {
		d.Due.MemoryBytes = 0
	}
	inForce, running := InForce(pod, d.Container)
	d.Late = running && !Meets(inForce, managed)
	return d, nil
}

// InForce returns the limits that the kubelet says a container has. running is false if it says nothing.
func InForce(pod *corev1.Pod, container string) (limits api.Resources, running bool) {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container && s.Resources != nil {
			return api.FromList(s.Resources.Limits), true
		}
	}
	return api.Resources{}, false
}

// Meets reports whether limits are as wanted. A wanted limit of 0 is met by any.
func Meets(limits, want api.Resources) bool {
	return (want.CPUMilli == 0 || limits.CPUMilli == want.CPUMilli) && (want.MemoryBytes == 0 || limits.MemoryBytes == want.MemoryBytes)
}
