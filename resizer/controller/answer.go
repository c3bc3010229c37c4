package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	backOffMax = pool.LeaseTTL

	// refusalMax bounds how long no raise of a pod is tried after several in a row
	// were refused: each costs its donors a resize down and one back.
	refusalMax = 5 * time.Minute
)

// unanswered is what is not known of a resize whose call failed.
type unanswered struct {
	limits     api.Resources
	generation int64     // of the pod before it
	until      time.Time // when it can be told to have failed
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

// unsure takes in that the answer to a resize is not known.
func (m *managedPod) unsure(limits api.Resources, now time.Time) {
	if m.unanswered != nil {
		limits = limits.Max(m.unanswered.limits)
	}
	m.unanswered = &unanswered{limits: limits, generation: m.pod.Generation, until: now.Add(pool.LeaseTTL)}
	m.possible = m.possible.Max(limits)
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

func (m *managedPod) backOff(now time.Time) {
	m.retryAt = now.Add(m.retry.Next())
}
