// Package debt tells by which limits that Libra set a pod differs from its Revision.
package debt

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

// Debt is what a pod's user-container is owed and does not have.
type Debt struct {
	Container string
	Owed      api.Resources // the Revision's limits
	Has       api.Resources // those of the pod's spec
	// Due are the limits to set. One that is as it should be, that another manager changed or that the owner did not set is 0.
	Due api.Resources
	// Late says that what the kubelet has in force is not what is owed.
	Late bool
}

// Of is the debt of a pod of the revision. Its error is that of managed fields that cannot be read.
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

// InForce are the limits that the kubelet says that a container has; running is false where it says nothing.
func InForce(pod *corev1.Pod, container string) (limits api.Resources, running bool) {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == container && s.Resources != nil {
			return api.FromList(s.Resources.Limits), true
		}
	}
	return api.Resources{}, false
}

// Meets says that limits are as wanted, of which 0 is any.
func Meets(limits, want api.Resources) bool {
	return (want.CPUMilli == 0 || limits.CPUMilli == want.CPUMilli) && (want.MemoryBytes == 0 || limits.MemoryBytes == want.MemoryBytes)
}
