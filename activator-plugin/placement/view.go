package placement

import (
	"sync/atomic"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// cpuWeight is the weight of CPU in a coverage. Memory has the rest (LIBRA, section 6.2).
const cpuWeight = 0.9

// oldestPicture is the age beyond which the picture counts as unknown.
const oldestPicture = 2 * time.Second

// View is a node's pool, as functions of one domain see it. Callers get it from Picture.View and keep it;
// its answers follow the picture. It may be nil, for a node that is not known. Its methods are safe for
// concurrent use.
type View struct {
	lent    ledger               // what the domain lends
	slot    int32                // in the domain's board
	board   *board               // the domain's
	seen    atomic.Pointer[seen] // nil while nothing is known
	picture *Picture
	node    *nodeViews
	domain  string
}

// seen is what a View says until more is heard about its node. It repeats some of what was heard, so that a
// comparison of many nodes fetches less memory.
type seen struct {
	redis       *redisPart
	beat        moment
	heard       *heard
	cpu, memory profile // what can be borrowed in the domain
}

type viewSlots struct{ lent, idle int32 }

// slotsOf returns the slots that matter to pods that borrow from a source.
func (v *View) slotsOf(source api.Source) (slots viewSlots) {
	if v != nil {
		slots.lent = v.slot
		if source == api.SourceNode {
			slots.idle = v.node.slot
		}
	}
	return slots
}

// see makes the View show what was heard last. The caller holds the picture's mu.
func (v *View) see(h *heard) {
	if h == nil {
		v.lent.cpu.forget()
		v.lent.memory.forget()
		v.seen.Store(nil)
		return
	}
	s := &seen{redis: h.redis, beat: h.beat, heard: h, cpu: nothingLent, memory: nothingLent}
	if d, ok := h.domains[v.domain]; ok {
		s.cpu, s.memory = profileOf(d.Lends, cpuOf, h.moment), profileOf(d.Lends, memoryOf, h.moment)
	}
	v.seen.Store(s)
	v.bound(h.at)
}

// bound sets bounds that hold from a moment on. The caller holds the picture's mu.
func (v *View) bound(from moment) {
	if s := v.seen.Load(); s != nil {
		v.lent.cpu.set(s.cpu.falling(from))
		v.lent.memory.set(s.memory.falling(from))
	}
}

// known returns what is seen, or nil if that is too old, and the moment of now.
func (v *View) known(now time.Time) (*seen, moment) {
	if v == nil {
		return nil, 0
	}
	s, at := v.seen.Load(), v.picture.momentOf(now)
	if s == nil || at-moment(s.redis.asked.Load()) > moment(oldestPicture) || at-s.beat >= moment(pool.LeaseTTL) {
		return nil, 0
	}
	return s, at
}

// Coverage returns the share of a demand that the node can satisfy from now on, 0 to 1 (LIBRA, section
// 6.2). For each resource, it is the volume that can be had at each moment, over the volume times the time,
// and 1 if none is wanted. This activator's own decisions since the picture was refreshed are subtracted.
// It is not known if the picture is too old, or has nothing about the node.
func (v *View) Coverage(source api.Source, d Demand, now time.Time) (coverage float64, known bool) {
	s, at := v.known(now)
	if s == nil {
		return 0, false
	}
	cpu, lent := &s.cpu, v.lent.debited()
	debited := lent.CPUMilli
	if source == api.SourceNode {
		if !s.heard.measured {
			return 0, false
		}
		// The request's use of its own allocation comes out of what is idle, too, and comes first.
		cpu, debited = &s.heard.unused, v.node.idle.debited().CPUMilli+d.OwnCPUMilli
	}
	coverage = cpuWeight * cpu.covered(d.Want.CPUMilli, debited, at, d.Duration)
	coverage += (1 - cpuWeight) * s.memory.covered(d.Want.MemoryBytes, lent.MemoryBytes, at, d.Duration)
	return coverage, true
}

// Debit subtracts a demand from what the node can lend, until the picture has heard more about the node.
func (v *View) Debit(source api.Source, d Demand, now time.Time) {
	if s, _ := v.known(now); s == nil {
		return
	}
	v.picture.choosing.now.Add(1)
	asked, want := v.picture.asked.Load(), d.Want.Max(api.Resources{})
	if source == api.SourceNode {
		v.node.idle.add(asked, api.Resources{CPUMilli: want.CPUMilli + max(d.OwnCPUMilli, 0)})
		want.CPUMilli = 0
	}
	v.lent.add(asked, want)
}

// Pressure is the share of a node that is in use, 0 to 1.
type Pressure struct {
	CPU    float64 // over the last second
	Memory float64 // 0 while it is not known
}

// Pressure returns the pressure of the View's node.
func (v *View) Pressure(now time.Time) (p Pressure, known bool) {
	s, _ := v.known(now)
	if s == nil || !s.heard.measured {
		return Pressure{}, false
	}
	return s.heard.use, true
}

// InFlight returns how many invocations are in flight on the View's node, those of all activators.
func (v *View) InFlight(now time.Time) (n int, known bool) {
	s, _ := v.known(now)
	if s == nil {
		return 0, false
	}
	return s.heard.begun, true
}
