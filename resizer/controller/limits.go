package controller

import (
	"math"
	"time"

	"libra.dev/libra/pkg/api"
)

const (
	// memoryPatience is how long a memory decrease may stay out of force. The kubelet
	// refuses a limit below what is in use, and keeps a CPU change of the same pod
	// waiting with it.
	memoryPatience = 2 * time.Second

	// memoryRest is how long memory is then left as it is before it is lowered again.
	memoryRest = 10 * time.Second
)

var noBound = api.Resources{CPUMilli: math.MaxInt64, MemoryBytes: math.MaxInt64}

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
