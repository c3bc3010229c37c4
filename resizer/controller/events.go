package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"libra.dev/libra/pkg/api"
)

// Reasons of Events on a pod.
const (
	// The pod opted in, but Libra does not resize it; the note says why: another manager set its limits, queue-proxy or all
	// containers together have limits, it has no limit, its resizePolicy restarts the container, the container or the
	// Revision is missing. If the note says that limits of a loan may be left, delete the pod.
	eventLeftAlone = "LibraLeftAlone"
	// The API server did not accept new limits: a ResourceQuota, a LimitRange, a webhook. Make room, or opt the namespace's
	// functions out. If a container "must specify limits.cpu" for a quota, delete the pod.
	eventResizeRefused = "LibraResizeRefused"
	// The API server did not accept the ceiling; the node agent sets it in the cgroup alone. You need to do nothing, unless
	// you want it in the spec: raise what the LimitRange allows.
	eventCeilingRefused = "LibraCeilingRefused"
	// The annotation libra.dev/max-cpu cannot be read, so the ceiling is the Revision's limit. Write an amount of CPU, such
	// as 500m or 2.
	eventMaxCPURefused = "LibraMaxCPURefused"
	// The kubelet did not take up new limits (Deferred, Infeasible). See the pod's conditions; a full node or the static
	// CPU manager is likely.
	eventResizePending = "LibraResizePending"
	// A memory limit that was raised did not go down within two seconds, so it is left for ten, and longer each time. It goes
	// down when less is in use.
	eventMemoryInUse = "LibraMemoryInUse"
)

// event is one Kubernetes Event on a pod.
type event struct {
	pod                        *corev1.Pod
	kind, reason, action, note string
}

func (e event) record(r events.EventRecorder) {
	r.Eventf(e.pod, nil, e.kind, e.reason, e.action, "%s", api.Note(e.note))
}

// leftAloneEvent tells the owner of an opted-in pod why Libra does nothing for it.
func leftAloneEvent(pod *corev1.Pod, why string) event {
	return event{pod, corev1.EventTypeWarning, eventLeftAlone, "Observe",
		"Libra does not resize this pod: " + why}
}

// refusedEvent says that the API server did not accept new limits.
func refusedEvent(pod *corev1.Pod, r resize, err error) event {
	return event{pod, corev1.EventTypeWarning, eventResizeRefused, "Resize",
		"The API server refused to set the limits to " + r.limits.String() + ": " + err.Error()}
}

// ceilingRefusedEvent says that the spec cannot have the ceiling, and what happens instead.
func ceilingRefusedEvent(pod *corev1.Pod, container string, ceilingMilli, keptMilli int64, why string) event {
	return event{pod, corev1.EventTypeWarning, eventCeilingRefused, "Resize", fmt.Sprintf(
		"limits.cpu of container %q is %dm instead of its ceiling of %dm, which the node agent sets only in the container's cgroup: %s",
		container, keptMilli, ceilingMilli, why)}
}

// maxCPURefusedEvent says that the owner's own bound of the ceiling cannot be read.
func maxCPURefusedEvent(pod *corev1.Pod, err error) event {
	return event{pod, corev1.EventTypeWarning, eventMaxCPURefused, "Observe",
		"The CPU ceiling of this pod is its user allocation: " + err.Error()}
}

// pendingEvent says that the kubelet did not take up new limits.
func pendingEvent(pod *corev1.Pod, reason, message string) event {
	return event{pod, corev1.EventTypeWarning, eventResizePending, "Resize",
		"The kubelet does not apply the limits that Libra asked for (" + reason + "): " + message}
}

// memoryInUseEvent says that memory could not be lowered.
func memoryInUseEvent(pod *corev1.Pod) event {
	return event{pod, corev1.EventTypeNormal, eventMemoryInUse, "Resize",
		"The memory limit could not be lowered, most likely because more is in use; it is left as it was"}
}
