package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

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
	// leaving says that the pod gets back what it is owed and nothing more: another
	// manager changed its limits, or it is departed.
	leaving bool
	// departed says that the pod opted out while its limits were not what it is owed,
	// so that the cache does not tell of it any more.
	departed bool
	gone     bool // the API server does not know the pod any more

	// A resource that has no limit in the Revision is zero in all of these.
	owed     api.Resources // user allocation
	request  api.Resources
	due      api.Resources // what it should have: owed + borrowed - lent
	asked    api.Resources // limits in the spec
	inForce  api.Resources // limits in the status; asked while the container does not run
	possible api.Resources // most that may be in force

	// ceiling is the milli CPU that the limit is to be under source node, whatever is on
	// loan; 0 under owners.
	ceiling int64
	// placed says that the spec's CPU is a ceiling, or was and is above what is due since.
	placed bool
	// ceilingUntil is how long the ceiling is not tried, because it was refused.
	ceilingUntil   time.Time
	ceilingRefusal backoff.Delay
	classTold      bool   // that its QoS class is why it has no ceiling in its spec
	countedBy      string // the quota that is why; empty when none is
	badMaxCPU      string // what is wrong with its annotation; empty when nothing is

	cpuSince, memorySince time.Time // since when each of due is what it is

	// dueVersion is the Version of the state that first had what is due. awaited says that
	// the node's living agent has not yet told that it acted on it.
	dueVersion int64
	awaited    bool
	// low and granted are the least and the most milli CPU that the agent may have left in
	// the cgroup: of what was due since it told that it had acted, or since the kubelet
	// wrote the cgroup.
	low, granted int64
	// overtaken says that the spec says more than is due, and was not in force yet when
	// less came to be due: the agent's word tells nothing of what the kubelet writes after.
	overtaken bool
	// waitsSince is since when the pod waits for its own CPU because others may have it; zero
	// when it does not.
	waitsSince time.Time
	impatient  bool // it has waited for long enough

	// trace is that of the loan that the pod is resized for, until the spec says again
	// what is owed; empty when that is not sampled.
	trace string

	running bool // there is a container to resize
	// settled says that the kubelet has done all it was asked to lower.
	settled bool
	// held is the most memory that the container's agent may have given it and that
	// the kubelet has not yet been told of and taken back, in bytes.
	held          int64
	settledMemory int64 // bytes; limit in the spec when it was last seen in force
	// nudgeAt is when the kubelet is to be made to write the cgroup; zero when it need
	// not be. bump is by how much the spec is above what it should be for that.
	nudgeAt time.Time
	// nudgeWas is what nudgeAt was before the resize that is under way.
	nudgeWas   time.Time
	nudgeTries int
	bump       api.Resources
	nudged     bool // bump is still to be taken off
	// readAt is when the state was read that the last resize is for; zero when that is
	// in force.
	readAt time.Time
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

func newManagedPod() *managedPod {
	return &managedPod{
		retry:          backoff.Delay{Min: backoff.Min, Max: backOffMax},
		refusal:        backoff.Delay{Min: pool.LeaseTTL, Max: refusalMax},
		ceilingRefusal: backoff.Delay{Min: pool.LeaseTTL, Max: refusalMax},
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

	if !m.running {
		m.nudgeAt = time.Time{} // its next container begins with what the spec says
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
		m.possible, m.nudgeWas = m.asked, time.Time{}
	} else {
		m.possible = m.ofOwed(m.possible).Max(m.asked).Max(m.inForce)
	}
	if m.arrived() {
		if m.settledMemory >= m.held {
			m.held = min(m.held, m.asked.MemoryBytes) // taken back by the kubelet, which looked at what is in use
		}
		m.settledMemory = m.asked.MemoryBytes
	}
	if m.arrived() || m.pending != "" {
		m.bump = api.Resources{}
	}
	if u := m.unanswered; u != nil {
		if pod.Generation > u.generation || !now.Before(u.until) {
			m.unanswered = nil
		} else {
			m.possible = m.possible.Max(m.ofOwed(u.limits))
		}
	}
}

// arrived says that what the spec says is in force, neither more nor less.
func (m *managedPod) arrived() bool { return m.settled && m.inForce == m.asked }

// tookEffect is how long after the state was read that it follows from a resize was
// seen in force; once per resize.
func (m *managedPod) tookEffect(now time.Time) (took time.Duration, ok bool) {
	if m.readAt.IsZero() || !m.running || !m.arrived() {
		return 0, false
	}
	took = now.Sub(m.readAt)
	m.readAt = time.Time{}
	return took, true
}

// depart makes the pod one that the cache does not tell of any more. It is false
// when nothing has to be given back.
func (m *managedPod) depart() bool {
	if m.unanswered != nil {
		// Nobody will tell what became of it, so set what is owed in any case.
		m.asked, m.unanswered = api.Resources{}, nil
	}
	m.departed, m.leaving, m.ceiling = true, true, 0
	return m.leftAlone == "" && !m.gone && m.asked != m.owed
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
