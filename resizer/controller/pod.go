package controller

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/backoff"
)

const (
	// memoryPatience is how long a memory decrease may stay out of force. The kubelet
	// refuses a limit below what is in use, and keeps a CPU change of the same pod
	// waiting with it.
	memoryPatience = 2 * time.Second
	// memoryRest is how long memory is then left as it is before it is lowered again.
	memoryRest = 10 * time.Second

	// waitPatience bounds how long a donor's spec is kept below what it is owed because
	// its borrowers are not known to be shrunk. It is time for an agent's silence to be
	// noticed, and for its pods to be nudged.
	waitPatience = pool.LeaseTTL + nudgeAfter + nudgeSpread + nudgePatience + time.Second

	// outagePatience bounds how much longer a pod waits for others to be lowered when the
	// API server did not answer: an outage of ten seconds, by when a process that cannot
	// renew its lease has ended, and what comes after it.
	outagePatience = 10*time.Second + unansweredPatience
	// unansweredPatience is how long after a patch that the API server did not answer it is
	// tried again and done by the kubelet.
	unansweredPatience = backOffMax + patchTimeout + nudgePatience

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

// unanswered is what is not known of a resize whose call failed.
type unanswered struct {
	limits     api.Resources
	generation int64     // of the pod before it
	until      time.Time // when it can be told to have failed
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

// expect takes in the pod's balance. An agent gives it to the container, or gave it
// before it fell silent and this process began.
func (m *managedPod) expect(n *node, b pool.Balance, now time.Time) {
	due := m.ofOwed(m.owed.Add(b.Borrowed).Sub(b.Lent))
	if m.ceiling > 0 {
		due.CPUMilli = m.ceiling
	}
	known := !m.cpuSince.IsZero()
	if m.cpuSince.IsZero() || due.CPUMilli != m.due.CPUMilli {
		m.cpuSince = now
		if m.ceiling == 0 {
			m.dueVersion = n.version
		}
	}
	if m.memorySince.IsZero() || due.MemoryBytes != m.due.MemoryBytes {
		m.memorySince, m.dueVersion = now, n.version
	}
	m.due = due
	if m.ceiling > 0 {
		m.placed = m.asked.CPUMilli > m.owed.CPUMilli
	} else {
		m.placed = m.placed && m.asked.CPUMilli > due.CPUMilli
	}
	switch {
	case m.placed && m.ceiling == 0:
		m.overtaken = true // the agent had no loan to end
	case m.unanswered != nil && m.unanswered.limits.CPUMilli > due.CPUMilli, !m.settled && m.asked.CPUMilli > due.CPUMilli:
		m.overtaken = true
	case m.settled && m.asked.CPUMilli <= due.CPUMilli:
		m.overtaken = false
	}
	m.awaited = !n.silent && n.acted < m.dueVersion
	switch {
	case n.silent && m.nudgeAt.IsZero() && m.arrived():
		m.low, m.granted = m.asked.CPUMilli, m.asked.CPUMilli // the kubelet has written it since
	case known && (n.silent || m.awaited):
		m.low, m.granted = min(m.low, due.CPUMilli), max(m.granted, due.CPUMilli)
	default:
		m.low, m.granted = due.CPUMilli, due.CPUMilli
	}
	if m.ceiling > 0 && (!n.silent || !m.nudgeAt.IsZero()) {
		m.low = min(m.low, m.owed.CPUMilli) // the agent takes that much back where others wait
	}
	if !b.Borrowed.IsZero() || !b.Lent.IsZero() {
		m.trace = b.Trace
	} else if m.asked == m.owed || m.asked == m.rest() {
		m.trace = ""
	}
	m.held = max(m.held, due.MemoryBytes)
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
	m.departed, m.leaving, m.ceiling = true, true, 0
	return m.leftAlone == "" && !m.gone && m.asked != m.owed
}

// strand takes in a pod of which nothing tells what it is owed. It is true once, when
// that has lasted for too long to be only a cache that is late.
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
	m.leftAlone = "there is no Revision of it that opted in, so what its limits should be is not known"
	if actuate.Resized(pod) {
		m.leftAlone += "; they may still be as Libra set them for a loan: delete the pod"
	}
	return m.leftAlone != before
}

// classFixed is why a pod is left alone that the node agent can change all the same.
const classFixed = "its QoS class is Guaranteed, which a resize may not change; set requests below the limits to take part"

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
		return classFixed
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

// limits is the pod as planning sees it. What the pod has been due for less than
// recordAfter is left as it is, unless that would keep from it what it is owed; young
// is how long the first such has yet to stand, or 0.
func (m *managedPod) limits(recordAfter time.Duration, now time.Time) (l podLimits, young time.Duration) {
	l = podLimits{
		name:      m.pod.Namespace + "/" + m.pod.Name,
		owed:      m.owed,
		least:     m.request,
		most:      m.ofOwed(noBound),
		asked:     m.asked.Sub(m.bump),
		possible:  m.possible.Sub(m.bump),
		low:       m.low,
		granted:   m.granted,
		overtaken: m.overtaken,
		awaited:   m.awaited,
		patient:   !m.leaving && m.pod.DeletionTimestamp == nil && !m.impatient,
		ceiling:   m.ceiling,
	}
	// The agent lowers what slows down; the spec could only lower what kills.
	l.least.MemoryBytes = m.owed.MemoryBytes
	if m.pod.DeletionTimestamp != nil || m.leaving {
		l.least = m.owed
	}
	if now.Before(m.memoryUntil) {
		l.least.MemoryBytes = max(l.least.MemoryBytes, m.memoryKept)
	}
	if !m.settled && m.pending == "" && !m.departed {
		// The kubelet looks at what is in use only when it lowers a limit that it has set.
		l.least.MemoryBytes = max(l.least.MemoryBytes, l.asked.MemoryBytes)
	}
	if m.held > m.asked.MemoryBytes {
		l.unrecorded = m.held
	}
	if m.ceiling > 0 {
		l.least.CPUMilli, l.most.CPUMilli = m.owed.CPUMilli, m.attainable(now)
	}
	switch {
	case m.leaving:
		l.most = l.most.Min(m.owed.Max(l.least))
	case now.Before(m.refusedUntil):
		l.most = l.most.Min(m.rest().Max(l.least))
	case recordAfter > 0:
		hold := func(since time.Time, due, owed, asked int64, least, most *int64) {
			wait := since.Add(recordAfter).Sub(now)
			kept := max(asked, min(due, owed), *least)
			if wait <= 0 || kept == max(due, *least) {
				return
			}
			*least, *most = kept, kept
			if young == 0 || wait < young {
				young = wait
			}
		}
		hold(m.memorySince, m.due.MemoryBytes, m.owed.MemoryBytes, l.asked.MemoryBytes, &l.least.MemoryBytes, &l.most.MemoryBytes)
		// With memory the kubelet writes the spec's CPU, which is not to be more than is due.
		memory := min(max(m.due.MemoryBytes, l.least.MemoryBytes), l.most.MemoryBytes)
		if m.ceiling == 0 && !m.placed && (memory == l.asked.MemoryBytes || m.due.CPUMilli >= l.asked.CPUMilli) {
			hold(m.cpuSince, m.due.CPUMilli, m.owed.CPUMilli, l.asked.CPUMilli, &l.least.CPUMilli, &l.most.CPUMilli)
		}
	}
	return l, young
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

// refused takes in that the API server does not accept a resize. When a quota forbids
// to record memory along with CPU, CPU waits for it: without it, the kubelet could
// write a memory limit that is below what is in use.
func (m *managedPod) refused(r resize, now time.Time) {
	if r.direction == nudge {
		m.nudgeAt = now.Add(nudgeRetry)
		if m.nudgeTries++; m.nudgeTries >= nudgeTriesMost {
			m.nudgeAt = time.Time{}
		}
	}
	m.backOff(now)
	if m.raisesToCeiling(r) {
		m.refuseCeiling(now)
		if r.limits.MemoryBytes <= m.asked.MemoryBytes {
			return // the memory was accepted before
		}
	}
	if m.above(r.limits) {
		m.refuse(now)
	}
}

// refuse keeps raises from being tried for a while, longer each time: it outlasts
// the loan, so that the next one does not lower its donors for nothing.
func (m *managedPod) refuse(now time.Time) {
	m.refusedUntil = now.Add(m.refusal.Next())
}

// above says that limits are more than the pod has while nothing is lent.
func (m *managedPod) above(limits api.Resources) bool { return limits.Max(m.rest()) != m.rest() }

// unsure takes in that the answer to a resize is not known.
func (m *managedPod) unsure(limits api.Resources, now time.Time) {
	if m.unanswered != nil {
		limits = limits.Max(m.unanswered.limits)
	}
	m.unanswered = &unanswered{limits: limits, generation: m.pod.Generation, until: now.Add(pool.LeaseTTL)}
	m.possible = m.possible.Max(limits)
}

// accepted takes in the API server's answer to a resize for a state read at readAt.
func (m *managedPod) accepted(pod *corev1.Pod, r resize, readAt time.Time) {
	m.bump, m.nudged = api.Resources{}, false
	if r.direction == nudge {
		m.bump, m.nudged = r.limits.Sub(m.asked), true
		if m.bump.CPUMilli != 0 {
			m.bump.MemoryBytes = 0
		}
	}
	switch {
	case r.direction == nudge, m.settled:
		// The kubelet has to write: the spec is not what it wrote last.
		m.nudgeWas, m.nudgeAt = m.nudgeAt, time.Time{}
	case r.limits == m.inForce && !m.nudgeWas.IsZero():
		m.nudgeAt = m.nudgeWas // it may see neither this nor what it was told before
	}
	m.pod, m.asked, m.readAt = pod, r.limits, readAt
	m.possible = m.possible.Max(r.limits)
	m.placed = m.placed || m.ceiling > 0 && m.asked.CPUMilli > m.owed.CPUMilli
	m.settled = false
	m.unanswered = nil
	m.retryAt = time.Time{}
	m.retry.Reset()
}
