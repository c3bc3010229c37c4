package controller

import (
	"time"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/backoff"
)

const (
	// memoryStands is how long less must have been due before a limit is lowered. An unused limit
	// holds no memory, and the next request may need as much. The pool names an agent for a lease after
	// its last heartbeat, so for at least as long again it did tell what is in use.
	memoryStands = 2 * pool.LeaseTTL
	// memoryStep is the smallest decrease, in bytes, of a limit that stays above what is owed.
	memoryStep = 16 << 20

	// memoryPatience is how long a decrease may stay out of force. The kubelet refuses a limit below
	// what is in use, and meanwhile holds back a change of the same pod's CPU.
	memoryPatience = 2 * time.Second
	// memoryRest is how long memory is then left as it is before it is lowered again. It grows each
	// time, up to refusalMax: cache may keep use up, and cache stays.
	memoryRest = 10 * time.Second
	// memoryBlind is how long no agent must have reported what is in use before limits are lowered all
	// the same. The kubelet's own knowledge of it may be 15 seconds old.
	memoryBlind = time.Minute

	// refusalMax bounds how long raises of a pod are put off after several refusals in a row.
	refusalMax = 5 * time.Minute
)

// memory is what the controller knows about a pod's memory limit, apart from what the pod is owed. The
// limit is never below that: an unused limit holds no memory, so that nobody gains by a lower one.
// Amounts are in bytes.
type memory struct {
	due       int64     // what the limit should be
	lessSince time.Time // since when due has been less than the spec has; zero when it is not
	dues      recent

	lateSince time.Time // since when a decrease has not come into force
	keptUntil time.Time // nothing is lowered before this
	keeping   backoff.Delay

	// A raise to refusedBytes was refused, and no raise to as many or more is tried before
	// refusedUntil.
	refusedUntil time.Time
	refusedBytes int64
	refusal      backoff.Delay
}

func newMemory() memory {
	return memory{
		refusal: backoff.Delay{Min: pool.LeaseTTL, Max: refusalMax},
		keeping: backoff.Delay{Min: memoryRest, Max: refusalMax},
	}
}

// expect records what the limit should be while the spec has asked. While blind, when it is not known
// what is in use, the wait before a decrease starts over.
func (m *memory) expect(due, asked int64, blind bool, now time.Time) {
	m.due = due
	m.dues.add(now, due)
	switch {
	case due >= asked:
		m.lessSince = time.Time{}
	case m.lessSince.IsZero() || blind:
		m.lessSince = now
	}
}

// recent holds the amounts that were due lately and may still be the most of memoryStands, each less
// than the one before it.
type recent []wasDue

type wasDue struct {
	bytes int64
	from  time.Time // since when the amount before it has no longer been due
}

func (r *recent) add(now time.Time, bytes int64) {
	all, from := *r, now
	for len(all) > 0 && all[len(all)-1].bytes <= bytes {
		from = all[len(all)-1].from
		all = all[:len(all)-1]
	}
	*r = append(all, wasDue{bytes, from})
	for len(*r) > 1 && now.Sub((*r)[1].from) >= memoryStands {
		*r = (*r)[1:]
	}
}

// most returns the most that was due within memoryStands, and how long until it may be less.
func (r recent) most(now time.Time) (bytes int64, next time.Duration) {
	if len(r) == 0 {
		return 0, resync
	}
	for len(r) > 1 && now.Sub(r[1].from) >= memoryStands {
		r = r[1:]
	}
	if len(r) == 1 {
		return r[0].bytes, resync
	}
	return r[0].bytes, memoryStands - now.Sub(r[1].from)
}

// refuse puts off raises to so many bytes or more, longer each time.
func (m *memory) refuse(bytes int64, now time.Time) {
	m.refusedBytes, m.refusedUntil = bytes, now.Add(m.refusal.Next())
}

// refuses reports whether a raise to so many bytes must not be tried yet.
func (m *memory) refuses(bytes int64, now time.Time) bool {
	return bytes >= m.refusedBytes && now.Before(m.refusedUntil)
}

// overdue reports, once per attempt, that a decrease is not going to come into force, and keeps memory
// as it is for a while.
func (m *memory) overdue(asked, inForce int64, now time.Time) bool {
	if asked >= inForce {
		m.lateSince = time.Time{}
		return false
	}
	if m.lateSince.IsZero() {
		m.lateSince = now
	}
	if now.Sub(m.lateSince) <= memoryPatience || now.Before(m.keptUntil) {
		return false
	}
	m.keptUntil = now.Add(m.keeping.Next())
	return true
}

// memoryTarget returns the target of the memory limit in the spec, and how long until it may change by
// itself.
func (m *managedPod) memoryTarget(now time.Time) (bytes int64, next time.Duration) {
	owed, asked, due := m.owed.MemoryBytes, m.asked.MemoryBytes, m.memory.due
	if m.standing == leaves {
		due = min(due, max(owed, asked, m.inForce.MemoryBytes))
	}
	held := max(owed, asked)
	if m.memory.refusedBytes <= asked { // accepted, but refused by the kubelet: what is in force is left
		held = max(owed, min(asked, m.inForce.MemoryBytes))
	}
	switch {
	case owed == 0:
		return 0, resync
	case now.Before(m.memory.keptUntil):
		if kept := max(due, asked, m.inForce.MemoryBytes); !m.memory.refuses(kept, now) {
			return kept, m.memory.keptUntil.Sub(now)
		}
		return asked, min(m.memory.keptUntil.Sub(now), m.memory.refusedUntil.Sub(now))
	case m.standing == departed, m.standing == gone:
		return owed, resync
	case due > held && m.memory.refuses(due, now):
		return held, m.memory.refusedUntil.Sub(now)
	case due >= asked:
		return due, resync
	}
	// Needs end with each request, and come back with the next.
	most, next := m.memory.dues.most(now)
	switch stood := now.Sub(m.memory.lessSince); {
	case stood < memoryStands:
		return asked, memoryStands - stood
	case !m.settled:
		return asked, tick // the kubelet checks what is in use only when it lowers a limit that it has set
	case most > owed && asked-most < memoryStep:
		return asked, next
	}
	return most, next
}
