package controller

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

const (
	// memoryPatience is how long a memory decrease may stay out of force. The kubelet
	// refuses a limit below what is in use, and keeps a CPU change of the same pod
	// waiting with it.
	memoryPatience = 2 * time.Second
	// memoryRest is how long memory is then left as it is before it is lowered again.
	memoryRest = 10 * time.Second

	backOffMax = pool.LeaseTTL
)

var noBound = api.Resources{CPUMilli: math.MaxInt64, MemoryBytes: math.MaxInt64}

// managedPod is what the controller knows of an opted-in pod: the newest of what
// the cache and its own patches told, and what cannot be read off it any more.
type managedPod struct {
	pod       *corev1.Pod
	function  string           // namespace/revision
	user      corev1.Container // as the Revision has it
	leftAlone string           // why the pod is not touched; empty when it is managed

	// A resource that has no limit in the Revision is zero in all of these.
	owed    api.Resources // user allocation
	request api.Resources
	asked   api.Resources // limits in the spec
	inForce api.Resources // limits in the status; asked while the container does not run
	ceiling api.Resources // most that may be in force

	// settled says that the kubelet has done all it was asked to lower.
	settled bool
	// pending is the kubelet's reason for not taking up a resize; empty when it did.
	pending, pendingMessage string

	noticed     string // the last pending that an Event was sent for
	planned     bool   // a plan was made with the pod in it before
	refused     bool   // a raise was refused; none is tried until the loan is over
	belowOwed   bool
	memoryLate  time.Time // since when a memory decrease is not in force
	memoryKept  int64     // bytes; least memory limit until memoryUntil
	memoryUntil time.Time
	retryAt     time.Time
	retry       backoff.Delay
}

func newManagedPod() *managedPod {
	return &managedPod{retry: backoff.Delay{Min: backoff.Min, Max: backOffMax}}
}

// observe takes in the pod as the cache has it. m.user is known by then.
func (m *managedPod) observe(pod *corev1.Pod) {
	// The answer to our own patch may be newer than the cache.
	if m.pod == nil || m.pod.UID != pod.UID || m.pod.Generation <= pod.Generation {
		m.pod = pod
	}
	pod = m.pod
	m.owed = api.FromList(m.user.Resources.Limits)
	m.leftAlone = leaveAlone(pod, m.user.Name, m.owed)

	for _, c := range pod.Spec.Containers {
		if c.Name == m.user.Name {
			m.request = m.ofOwed(api.FromList(c.Resources.Requests))
			m.asked = m.ofOwed(api.FromList(c.Resources.Limits))
		}
	}
	m.inForce = m.asked
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name == m.user.Name && s.State.Running != nil && s.Resources != nil {
			m.inForce = m.ofOwed(api.FromList(s.Resources.Limits))
		}
	}

	inProgress := false
	m.pending, m.pendingMessage = "", ""
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case corev1.PodResizeInProgress:
			inProgress = true
		case corev1.PodResizePending:
			m.pending, m.pendingMessage = c.Reason, c.Message
		}
	}
	// A kubelet that does not tell the generation it has seen reports 0.
	seen := pod.Status.ObservedGeneration == 0 || pod.Status.ObservedGeneration >= pod.Generation
	m.settled = seen && !inProgress && m.pending == "" && m.inForce.Max(m.asked) == m.asked
	if m.settled {
		m.ceiling = m.asked
	} else {
		m.ceiling = m.ceiling.Max(m.asked).Max(m.inForce)
	}
}

// leaveAlone says why a pod must not be touched, or nothing.
func leaveAlone(pod *corev1.Pod, container string, owed api.Resources) string {
	found := false
	for _, c := range pod.Spec.Containers {
		switch {
		case c.Name == container:
			found = true
		case c.Name == api.QueueProxyContainer && len(c.Resources.Limits) > 0:
			return "its queue-proxy has limits, so the pod's own quota would bind; unset queue-sidecar-cpu-limit and queue-sidecar-memory-limit"
		}
	}
	switch {
	case !found:
		return fmt.Sprintf("it has no container %q, which its Revision names", container)
	case owed.IsZero():
		return fmt.Sprintf("container %q has neither a CPU nor a memory limit in its Revision; set one to take part", container)
	case pod.Status.QOSClass == corev1.PodQOSGuaranteed:
		return "its QoS class is Guaranteed, which a resize may not change; set requests below the limits to take part"
	}
	return ""
}

// ofOwed leaves out of r what the user set no limit for.
func (m *managedPod) ofOwed(r api.Resources) api.Resources {
	if m.owed.CPUMilli == 0 {
		r.CPUMilli = 0
	}
	if m.owed.MemoryBytes == 0 {
		r.MemoryBytes = 0
	}
	return r
}

// done says that the pod is of no concern any more.
func done(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// whole says that the user allocation is asked for and in force.
func (m *managedPod) whole() bool {
	return m.settled && m.asked == m.owed && m.inForce == m.owed
}

// limits is the pod as planning sees it.
func (m *managedPod) limits(now time.Time) podLimits {
	l := podLimits{
		name:    m.pod.Namespace + "/" + m.pod.Name,
		owed:    m.owed,
		least:   m.request,
		most:    noBound,
		asked:   m.asked,
		ceiling: m.ceiling,
	}
	if m.pod.DeletionTimestamp != nil {
		l.least = m.owed
	}
	if now.Before(m.memoryUntil) {
		l.least.MemoryBytes = max(l.least.MemoryBytes, m.memoryKept)
	}
	if m.refused {
		l.most = m.owed
	}
	return l
}

// overdueMemory says, once per time, that a memory decrease is not going to come
// into force, and keeps memory as it is for a while.
func (m *managedPod) overdueMemory(now time.Time) bool {
	if m.asked.MemoryBytes >= m.inForce.MemoryBytes {
		m.memoryLate = time.Time{}
		return false
	}
	if m.memoryLate.IsZero() {
		m.memoryLate = now
	}
	if now.Sub(m.memoryLate) <= memoryPatience || now.Before(m.memoryUntil) {
		return false
	}
	m.memoryKept, m.memoryUntil = m.inForce.MemoryBytes, now.Add(memoryRest)
	return true
}

func (m *managedPod) backOff(now time.Time) {
	m.retryAt = now.Add(m.retry.Next())
}

// accepted takes in the API server's answer to a resize.
func (m *managedPod) accepted(pod *corev1.Pod, limits api.Resources) {
	m.pod = pod
	m.asked = limits
	m.ceiling = m.ceiling.Max(limits)
	m.retryAt = time.Time{}
	m.retry.Reset()
}
