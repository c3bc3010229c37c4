package agent

import (
	"context"
	"slices"
	"time"

	"libra.dev/libra/resizer/cgroup"
)

// fly takes in which flights the state names in a pod. The flights known until now used what
// the pod has used until now.
func (r *reflex) fly(e *entry, now time.Time) {
	w := &e.weighing
	if !r.weighs(e) {
		r.reweigh = r.reweigh || w.inFlight
		w.flights = flights{}
		r.tellOf(e, false)
		return
	}
	seen, known := r.state.InFlight[e.pod], len(w.flights.known)
	if len(seen) > 0 || known > 0 {
		r.attribute(e)
	}
	begun, ended := w.flights.follow(seen, r.asked)
	r.flown(e, now, begun, ended)
	r.tellOf(e, len(w.flights.known) == 0)
}

// hear takes in which flights began and ended. While no states come, it ignores them, because
// nothing would ever correct what it heard; the next state has it.
func (r *reflex) hear(h heard) {
	if r.lost {
		return
	}
	for _, b := range h.begun {
		e := r.get(b.Pod)
		if e == nil || !r.weighs(e) {
			continue
		}
		r.attribute(e)
		f := flight{id: b.ID, begun: r.poolClock.own(b.At, h.at), heard: h.at, work: work{predicted: b.CPUTime}}
		if e.weighing.flights.begin(f) {
			r.flown(e, h.at, []time.Time{f.begun}, false)
			r.tellOf(e, false)
		}
	}
	for _, ended := range h.ended {
		e := r.get(ended.Pod)
		if e == nil || !r.weighs(e) {
			continue
		}
		r.attribute(e)
		if e.weighing.flights.end(ended.ID, h.at) {
			r.flown(e, h.at, nil, true)
			r.tellOf(e, len(e.weighing.flights.known) == 0)
		}
	}
}

// flown takes in that flights began or ended. An end is not urgent: the others have the CPU
// that it leaves at once, whatever the weights.
func (r *reflex) flown(e *entry, now time.Time, begun []time.Time, ended bool) {
	w := &e.weighing
	if ended && len(w.flights.known) == 0 {
		w.endedAt, w.endedCPU = now, w.cpu
	}
	r.begun = append(r.begun, begun...)
	r.reweigh, r.ended = r.reweigh || len(begun) > 0, r.ended || ended
}

// tellOf tells whoever samples the pod's container whether the agent knows of no request in
// it. none is false if the agent does not hear of requests in the pod.
func (r *reflex) tellOf(e *entry, none bool) {
	c := r.sampled.get(e.pod)
	if c == nil || c.told.Load() == none {
		return
	}
	c.told.Store(none)
	if !none {
		c.quiet.Store(nil)
		r.sampled.stir()
		r.clamps.stir(r.clock.Now())
	}
}

// rests reports whether nothing is known to go on in the pod.
func (r *reflex) rests(e *entry, now time.Time) bool {
	c := r.sampled.get(e.pod)
	return c != nil && c.id == e.info.container && len(e.weighing.flights.known) == 0 && c.rests(now)
}

// attributeNow divides what the container has used among its flights, unless that was done a
// moment ago. It reports whether it has been done by now.
func (r *reflex) attributeNow(e *entry, now time.Time) bool {
	if now.Sub(e.weighing.cpuAt) >= attributeEvery {
		r.attribute(e)
	}
	return now.Sub(e.weighing.cpuAt) < attributeEvery
}

// attribute reads what the container has used, and divides it among its flights.
func (r *reflex) attribute(e *entry) {
	cpu, err := e.info.cgroup.CPU()
	if err != nil {
		if !cgroup.Gone(err) {
			r.metrics.sampleErrors.Add(context.Background(), 1)
		}
		return // the reading that follows will tell
	}
	if w := &e.weighing; len(w.flights.known) > 0 {
		w.flights.divide(max(0, cpu-w.cpu))
	}
	e.weighing.cpu, e.weighing.cpuAt = cpu, r.clock.Now()
}

// wakes reports whether a pod has begun to use CPU though no request is seen in it.
func (r *reflex) wakes() bool {
	return slices.ContainsFunc(r.entries, func(e *entry) bool {
		return !e.weighing.inFlight && r.weighs(e) && len(e.weighing.flights.known) == 0 && len(r.unseen(e)) > 0
	})
}

// toldFor is how long after the activator told of a quick request it is assumed to tell of
// what begins in the pod. It tells of one quick request in five seconds.
const toldFor = 15 * time.Second

// unseen is the work of a pod that uses CPU though no request is seen in it; none while it
// rests. Quick requests may follow each other without a rest, so that what they used together
// says nothing about one of them.
func (r *reflex) unseen(e *entry) []work {
	a, ok := r.activity(e)
	if !ok || a.used < leastUse {
		return nil
	}
	w := work{used: a.used}
	if r.clock.Since(e.weighing.flights.toldAt) < toldFor {
		w.predicted = a.used + untoldLeft
	}
	return []work{w}
}

// activity returns what the pod does apart from known flights, and whether it is busy now.
func (r *reflex) activity(e *entry) (activity, bool) {
	c := r.sampled.get(e.pod)
	if c == nil || c.id != e.info.container {
		return activity{}, false
	}
	a := c.active()
	if w := &e.weighing; a.since.Before(w.endedAt) {
		a.used -= w.endedCPU - a.before
		a.since, a.before = w.endedAt, w.endedCPU
	}
	return a, a.busy && r.clock.Since(a.at) <= longestGap
}
