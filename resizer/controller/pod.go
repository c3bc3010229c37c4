package controller

import (
	"fmt"
	"math"
	"slices"
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
	// refusalMax bounds how long no raise of a pod is tried after several in a row
	// were refused: each costs its donors a resize down and one back.
	refusalMax = 5 * time.Minute

	// revisionGrace is how long a Revision may take to get into the cache after its
	// pods.
	revisionGrace = 5 * time.Second
)

var noBound = api.Resources{CPUMilli: math.MaxInt64, MemoryBytes: math.MaxInt64}

// managedPod is what the controller knows of an opted-in pod: the newest of what
// the cache and its own patches told, and what cannot be read off it any more.
type managedPod struct {
	pod       *corev1.Pod
	function  string           // namespace/revision
	user      corev1.Container // as the Revision has it
	leftAlone string           // why the pod is not touched; empty when it is managed
	// unreadSince is since when there is no Revision to tell what is owed; zero when
	// that is known.
	unreadSince time.Time
	// adrift says that what is owed is not known of a pod that Libra resized before.
	adrift bool
	// leaving says that the pod gets back what it is owed and nothing more: another
	// manager changed its limits, or it is departed.
	leaving bool
	// departed says that the pod opted out while its limits were not what it is owed,
	// so that the cache does not tell of it any more.
	departed bool
	gone     bool // the API server does not know the pod any more

	// A resource that has no limit in the Revision is zero in all of these.
	owed    api.Resources // user allocation
	request api.Resources
	asked   api.Resources // limits in the spec
	inForce api.Resources // limits in the status; asked while the container does not run
	ceiling api.Resources // most that may be in force

	// settled says that the kubelet has done all it was asked to lower.
	settled bool
	// unanswered is a resize that may have been accepted although its call failed.
	unanswered *unanswered
	// pending is the kubelet's reason for not taking up a resize; empty when it did.
	pending, pendingMessage string

	noticed     string // the last pending that an Event was sent for
	planned     bool   // a plan was made with the pod in it before
	belowOwed   bool
	memoryLate  time.Time // since when a memory decrease is not in force
	memoryKept  int64     // bytes; least memory limit until memoryUntil
	memoryUntil time.Time
	retryAt     time.Time
	retry       backoff.Delay
	// refusedUntil is how long no raise is tried, because some were refused.
	refusedUntil time.Time
	refusal      backoff.Delay
}

// unanswered is what is not known of a resize whose call failed.
type unanswered struct {
	limits     api.Resources
	generation int64     // of the pod before it
	until      time.Time // when it can be told to have failed
}

func newManagedPod() *managedPod {
	return &managedPod{
		retry:   backoff.Delay{Min: backoff.Min, Max: backOffMax},
		refusal: backoff.Delay{Min: pool.LeaseTTL, Max: refusalMax},
	}
}

// observe takes in the pod as the cache has it. m.user is known by then.
func (m *managedPod) observe(pod *corev1.Pod, now time.Time) {
	// The answer to our own patch may be newer than the cache.
	if m.pod == nil || m.pod.UID != pod.UID || m.pod.Generation <= pod.Generation {
		m.pod = pod
	}
	pod = m.pod
	m.departed = false
	m.owed = api.FromList(m.user.Resources.Limits)
	m.leftAlone = leaveAlone(pod, m.user.Name, m.owed)

	for _, c := range pod.Spec.Containers {
		if c.Name == m.user.Name {
			m.request = m.ofOwed(api.FromList(c.Resources.Requests))
			m.asked = m.ofOwed(api.FromList(c.Resources.Limits))
		}
	}
	m.yield()
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
		m.ceiling = m.ofOwed(m.ceiling).Max(m.asked).Max(m.inForce)
	}
	if u := m.unanswered; u != nil {
		if pod.Generation > u.generation || !now.Before(u.until) {
			m.unanswered = nil
		} else {
			m.ceiling = m.ceiling.Max(m.ofOwed(u.limits))
		}
	}
}

// yield leaves a pod to whoever else changed its limits: two managers that do not
// know of each other would change them for ever. What Libra changed is put back first.
func (m *managedPod) yield() {
	limits, allocation := m.asked, m.owed
	m.owed, m.leaving = changedByOthers(m.pod, m.user.Name, allocation, limits)
	m.request, m.asked = m.ofOwed(m.request), m.ofOwed(m.asked)
	if m.leaving && m.asked == m.owed && m.leftAlone == "" {
		m.leftAlone = fmt.Sprintf("container %q has the limits %v where its Revision says %v, and Libra did not set them: "+
			"a webhook, a LimitRange or another manager of resources did", m.user.Name, limits, allocation)
	}
}

// depart makes the pod one that the cache does not tell of any more. It is false
// when nothing has to be given back.
func (m *managedPod) depart() bool {
	if m.unanswered != nil {
		// Nobody will tell what became of it, so set what is owed in any case.
		m.asked, m.unanswered = api.Resources{}, nil
	}
	m.departed, m.leaving = true, true
	return m.leftAlone == "" && !m.gone && m.asked != m.owed
}

// strand takes in a pod of which nothing tells what it is owed. It is true once, when
// that has lasted for too long to be only a cache that is late.
func (m *managedPod) strand(pod *corev1.Pod, now time.Time) bool {
	m.pod = pod
	m.adrift = slices.ContainsFunc(pod.ManagedFields, isOurResize)
	if m.unreadSince.IsZero() {
		m.unreadSince = now
	}
	before := m.leftAlone
	m.leftAlone = "its Revision has not been read yet"
	if now.Sub(m.unreadSince) < revisionGrace {
		return false
	}
	m.leftAlone = "there is no Revision of it that opted in, so what its limits should be is not known"
	if m.adrift {
		m.leftAlone += "; they may still be as Libra set them for a loan, and its node does not lend: delete the pod"
	}
	return m.leftAlone != before
}

// leaveAlone says why a pod must not be touched, or nothing.
func leaveAlone(pod *corev1.Pod, container string, owed api.Resources) string {
	found := false
	for _, c := range pod.Spec.Containers {
		switch {
		case c.Name == container:
			found = true
			for _, p := range c.ResizePolicy {
				if p.RestartPolicy == corev1.RestartContainer {
					return fmt.Sprintf("container %q is to be restarted when its %s is resized; set its resizePolicy to NotRequired to take part", container, p.ResourceName)
				}
			}
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
	return m.settled && m.unanswered == nil && m.asked == m.owed && m.inForce == m.owed
}

// limits is the pod as planning sees it.
func (m *managedPod) limits(now time.Time) podLimits {
	l := podLimits{
		name:    m.pod.Namespace + "/" + m.pod.Name,
		owed:    m.owed,
		least:   m.request,
		most:    m.ofOwed(noBound),
		asked:   m.asked,
		ceiling: m.ceiling,
	}
	if m.pod.DeletionTimestamp != nil {
		l.least = m.owed
	}
	if now.Before(m.memoryUntil) {
		l.least.MemoryBytes = max(l.least.MemoryBytes, m.memoryKept)
	}
	if m.leaving {
		l.least = m.owed
	}
	if m.leaving || now.Before(m.refusedUntil) {
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

// refuse keeps raises from being tried for a while, longer each time: it outlasts
// the loan, so that the next one does not lower its donors for nothing.
func (m *managedPod) refuse(now time.Time) {
	m.refusedUntil = now.Add(m.refusal.Next())
}

// above says that limits are more than the user allocation.
func (m *managedPod) above(limits api.Resources) bool { return limits.Max(m.owed) != m.owed }

// unsure takes in that the answer to a resize is not known.
func (m *managedPod) unsure(limits api.Resources, now time.Time) {
	if m.unanswered != nil {
		limits = limits.Max(m.unanswered.limits)
	}
	m.unanswered = &unanswered{limits: limits, generation: m.pod.Generation, until: now.Add(pool.LeaseTTL)}
	m.ceiling = m.ceiling.Max(limits)
}

// accepted takes in the API server's answer to a resize.
func (m *managedPod) accepted(pod *corev1.Pod, limits api.Resources) {
	m.pod = pod
	m.asked = limits
	m.ceiling = m.ceiling.Max(limits)
	m.unanswered = nil
	m.retryAt = time.Time{}
	m.retry.Reset()
}
