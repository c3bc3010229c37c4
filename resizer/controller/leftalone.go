package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/eligible"
)

// revisionGrace is how much later than its pods a Revision may get into the cache.
const revisionGrace = 5 * time.Second

// leaveAlone returns why a pod must not be touched, or nothing.
func leaveAlone(pod *corev1.Pod, container string, owed api.Resources) string {
	found := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	switch {
	case !found:
		return fmt.Sprintf("it has no container %q, which its Revision names", container)
	case owed.IsZero():
		return fmt.Sprintf("container %q has neither a CPU nor a memory limit in its Revision; set one to take part", container)
	}
	// A resize may not change the QoS class of a Guaranteed pod, either. Obstacle covers such pods, because
	// all of their containers have limits, queue-proxy too.
	return eligible.Obstacle(pod, container)
}

// yield leaves a pod to another manager that changed its limits: two managers that do not know of each other
// would change them forever. Libra first puts back what it changed itself.
func (m *managedPod) yield() {
	limits, allocation := m.asked, m.owed
	var changed bool
	m.owed, changed = actuate.ChangedByOthers(m.pod, m.user.Name, allocation, limits)
	m.standing, m.asked = takesPart, m.ofOwed(m.asked)
	if !changed {
		return
	}
	m.standing = leaves
	if m.asked == m.owed && m.leftAlone == "" {
		m.leftAlone = fmt.Sprintf("container %q has the limits %v where its Revision says %v, and Libra did not set them: "+
			"a webhook, a LimitRange or another manager of resources did", m.user.Name, limits, allocation)
	}
}

// strand records a pod for which nothing says what it is owed. It returns true once, when that has lasted too
// long to be only a late cache.
func (m *managedPod) strand(pod *corev1.Pod, now time.Time) bool {
	m.pod = pod
	if m.unreadSince.IsZero() {
		m.unreadSince = now
	}
	before := m.leftAlone
	m.leftAlone = "its Revision has not been read yet"
	if now.Sub(m.unreadSince) < revisionGrace {
		return false
	}
	m.leftAlone = "it has no Revision that opted in, so its proper limits are unknown"
	if actuate.Resized(pod) {
		m.leftAlone += "; its limits may still be those that Libra set: delete the pod"
	}
	return m.leftAlone != before
}
