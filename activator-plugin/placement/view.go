package placement

import (
	"sync/atomic"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// cpuWeight is the weight of CPU in a coverage, and what is left is memory's (LIBRA, section 6.2).
const cpuWeight = 0.9

// oldestPicture is how old the picture may be for anything to be known of it.
const oldestPicture = 2 * time.Second

// View is a node's pool, as functions of one domain see it. Whoever asks Picture.View for it keeps
// it, and what it says follows the picture. It may be nil, for a node that is not known. All of it may be
// used by several at a time.
type View struct {
	lent    ledger               // what the domain lends
	slot    int32                // of the domain's board
	board   *board               // the domain's
	seen    atomic.Pointer[seen] // nil while nothing is known
	picture *Picture
	node    *nodeViews
	domain  string
}

// seen is what a View says, until more is heard of its node. Some of what was heard is here, too, so that
// who compares many nodes has less to fetch.
type seen struct {
	redis       *redisPart
	beat        moment
	heard       *heard
	cpu, memory profile // that can be borrowed in the domain
}

type viewSlots struct{ lent, idle int32 }

// slotsOf are those that matter where pods borrow from a source.
func (v *View) slotsOf(source api.Source) (slots viewSlots) {
	if v != nil {
		slots.lent = v.slot
		if source == api.SourceNode {
			slots.idle = v.node.slot
		}
	}
	return slots
}

// see makes the View one of what was heard last. It presumes that the picture's mu is held.
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

// bound has the bounds be from a moment on. It presumes that the picture's mu is held.
func (v *View) bound(from moment) {
	if s := v.seen.Load(); s != nil {
		v.lent.cpu.set(s.cpu.falling(from))
		v.lent.memory.set(s.memory.falling(from))
	}
}

// known is what is seen, unless it is too old, and the moment.
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

// Coverage says how much of a demand its node can satisfy from now on, 0 to 1 (LIBRA, section 6.2): of each
// resource the volume that can be had at each moment, over the volume times the time, and 1 of one
// that is not wanted. What this activator has decided since the picture was taken is taken off. It is
// not known when the picture is too old, or has nothing of the node.
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
		// What it uses of its own allocation is of what is idle, too, and it has that first.
		cpu, debited = &s.heard.unused, v.node.idle.debited().CPUMilli+d.OwnCPUMilli
	}
	coverage = cpuWeight * cpu.covered(d.Want.CPUMilli, debited, at, d.Duration)
	coverage += (1 - cpuWeight) * s.memory.covered(d.Want.MemoryBytes, lent.MemoryBytes, at, d.Duration)
	return coverage, true
}

// Debit takes a demand off what the node can lend, until the picture has heard more of the node.
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

// Pressure is which share of a node is in use, 0 to 1.
type Pressure struct {
	CPU    float64 // over the last second
	Memory float64 // 0 while it is not known
}

// Pressure is that of its node.
func (v *View) Pressure(now time.Time) (p Pressure, known bool) {
	s, _ := v.known(now)
	if s == nil || !s.heard.measured {
		return Pressure{}, false
	}
	return s.heard.use, true
}

// InFlight is how many invocations have begun on its node, of all activators.
func (v *View) InFlight(now time.Time) (n int, known bool) {
	s, _ := v.known(now)
	if s == nil {
		return 0, false
	}
	return s.heard.begun, true
}
