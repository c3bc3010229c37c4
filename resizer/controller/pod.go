package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

// managedPod is what the controller knows about an opted-in pod: the newest that the cache and its
// own patches have told, and what the pod no longer shows.
type managedPod struct {
	name     string // namespace/name
	pod      *corev1.Pod
	function string           // namespace/revision
	user     corev1.Container // as the Revision has it
	// unreadSince is since when no Revision has told what the pod is owed; zero when that is known.
	unreadSince time.Time
	leftAlone   string // why the pod is not touched; empty when it is managed
	standing    standing
	// unobserved reports that the pod's mode was once seen to be more than observe.
	unobserved bool

	// A resource that has no limit in the Revision is zero in all of these.
	owed    api.Resources // user allocation
	asked   api.Resources // limits in the spec
	inForce api.Resources // limits in the status; asked while the container does not run

	running bool // there is a container to resize
	settled bool // the kubelet has made every decrease that it was asked for
	pending pending

	ceiling cpuCeiling
	memory  memory
	repair  repair
	calls   calls
}

// standing is how Libra treats a pod.
type standing int

const (
	takesPart standing = iota
	// leaves is a pod whose limits another manager changed. It gets back what it is owed and
	// nothing more; memory, once the pod no longer uses it.
	leaves
	// departed is a pod that opted out while its limits were not what it is owed, so that the cache
	// no longer shows it. It gets back what it is owed, too.
	departed
	gone // the API server no longer knows it
)

// pending is why the kubelet has not taken up a resize; its reason is empty when it has.
type pending struct {
	reason, message string
	told            string // the last reason that an Event was sent for
}

// calls is the state of a pod's patches.
type calls struct {
	// No patch is sent before retryAt, because the last one failed. If that one could wait, one that cannot is sent all
	// the same.
	retryAt   time.Time
	couldWait bool
	retry     backoff.Delay
	// unsure reports that the last patch failed but may have been accepted all the same.
	unsure bool
	// asOf is when the last patch was planned; zero once it is in force.
	asOf time.Time
	// trace is the trace of the loan that the pod is resized for, until its memory is as without a
	// loan; empty when the loan is not sampled.
	trace string
}

func newManagedPod(name string) *managedPod {
	return &managedPod{
		name:    name,
		ceiling: cpuCeiling{refusal: backoff.Delay{Min: pool.LeaseTTL, Max: refusalMax}},
		memory:  newMemory(),
		calls:   calls{retry: backoff.Delay{Min: backoff.Min, Max: backOffMax}},
	}
}

// observe updates m from the pod in the cache. m.user is known by then.
func (m *managedPod) observe(pod *corev1.Pod) {
	// The answer to our own patch may be newer than the cache.
	if m.pod == nil || m.pod.UID != pod.UID || m.pod.Generation <= pod.Generation {
		m.calls.unsure = m.calls.unsure && m.pod.Generation == pod.Generation
		m.pod = pod
	}
	pod = m.pod
	m.owed = api.FromList(m.user.Resources.Limits)
	m.leftAlone = leaveAlone(pod, m.user.Name, m.owed)
	m.asked = m.askedOf(pod)
	m.yield()

	m.inForce, m.running = m.asked, false
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name != m.user.Name || s.State.Running == nil {
			continue
		}
		m.running = true
		if s.Resources != nil {
			m.inForce = m.ofOwed(api.FromList(s.Resources.Limits))
		}
	}

	inProgress := false
	m.pending.reason, m.pending.message = "", ""
	for _, c := range pod.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case corev1.PodResizeInProgress:
			inProgress = true
		case corev1.PodResizePending:
			m.pending.reason, m.pending.message = c.Reason, c.Message
		}
	}
	// A kubelet that does not report the generation it has seen leaves 0 there.
	seen := pod.Status.ObservedGeneration == 0 || pod.Status.ObservedGeneration >= pod.Generation
	m.settled = seen && !inProgress && m.pending.reason == "" && m.inForce.Max(m.asked) == m.asked
}

// arrived reports whether the limits in the spec are in force, neither more nor less.
func (m *managedPod) arrived() bool { return m.settled && m.inForce == m.asked }

// tookEffect returns the time from planning a resize to seeing it in force. ok is true once per
// resize.
func (m *managedPod) tookEffect(now time.Time) (took time.Duration, ok bool) {
	if m.calls.asOf.IsZero() || !m.running || !m.arrived() {
		return 0, false
	}
	took = now.Sub(m.calls.asOf)
	m.calls.asOf = time.Time{}
	return took, true
}

// depart makes the pod one that the cache no longer shows. It returns false when the pod has
// nothing to get back.
func (m *managedPod) depart() bool {
	if m.calls.unsure {
		m.asked, m.calls.unsure = api.Resources{}, false // nobody will report the outcome
	}
	if m.standing == gone || m.leftAlone != "" || m.pod.DeletionTimestamp != nil || m.asked == m.owed {
		return false
	}
	m.standing, m.repair = departed, repair{}
	return true
}

// askedOf returns the limits in a pod's spec.
func (m *managedPod) askedOf(pod *corev1.Pod) (limits api.Resources) {
	for _, c := range pod.Spec.Containers {
		if c.Name == m.user.Name {
			limits = m.ofOwed(api.FromList(c.Resources.Limits))
		}
	}
	return limits
}

// ofOwed clears the resources of r for which the user set no limit.
func (m *managedPod) ofOwed(r api.Resources) api.Resources {
	if m.owed.CPUMilli == 0 {
		r.CPUMilli = 0
	}
	if m.owed.MemoryBytes == 0 {
		r.MemoryBytes = 0
	}
	return r
}

// done reports whether the pod has ended and no longer matters.
func done(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// accepted records the API server's answer to a resize that was planned at asOf.
func (m *managedPod) accepted(pod *corev1.Pod, r resize, asOf time.Time) {
	switch {
	case r.direction == nudge:
		m.repair.stage = repairBumped
	case m.repair.stage == repairBumped && r.limits.CPUMilli != m.asked.CPUMilli:
		m.repair = repair{}
	}
	m.pod, m.asked, m.settled = pod, r.limits, false
	m.calls.asOf, m.calls.retryAt, m.calls.unsure = asOf, time.Time{}, false
	m.calls.retry.Reset()
}

// refused records that the API server did not accept a resize, and reports whether it is the first
// refusal in a row. Each kind that can wait has its own back-off, so that none delays another.
func (m *managedPod) refused(r resize, now time.Time) (first bool) {
	switch r.refusable() {
	case reasonRepair:
		first = m.repair.tries == 0
		m.repair.refused(now)
	case reasonCeiling:
		first = !m.ceiling.refusal.Failing()
		m.ceiling.refuse(now)
	case reasonMemory:
		first = !m.memory.refusal.Failing()
		m.memory.refuse(r.limits.MemoryBytes, now)
	default:
		first = !m.calls.retry.Failing()
		m.backOff(r, now)
	}
	return first
}

// backOff puts off the pod's next patch, because r was not accepted.
func (m *managedPod) backOff(r resize, now time.Time) {
	m.calls.retryAt, m.calls.couldWait = now.Add(m.calls.retry.Next()), r.canWait()
}
