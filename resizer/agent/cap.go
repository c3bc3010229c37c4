package agent

// capped returns the node's containers that may use more CPU than their allocations:
// what the node has idle, up to a ceiling, or what they have borrowed.
func (r *reflex) capped() []capped {
	if r.clamps == nil || r.stopping {
		return nil // the clamps give back what they changed
	}
	now := r.clock.Now()
	all := r.cappedBefore[:0]
	for _, e := range r.entries {
		if !e.present || e.info.cgroup == nil || e.info.observed != "" || e.replaced && !e.info.node {
			continue
		}
		take := r.borrows
		if e.info.node {
			take = usesIdle
		}
		if c, ok := take(e); ok {
			c.pod, c.function, c.container, c.quotas = e.pod, e.info.function, e.info.container, e.info.cgroup
			c.rests = r.rests(e, now)
			if s := r.sampled.get(e.pod); s != nil {
				c.restAt, c.restCPU = s.rest()
			}
			if w := &e.weighing; len(w.flights.known) > 0 && r.attributeNow(e, now) {
				c.cpu, c.cpuAt = w.cpu, w.cpuAt
			}
			all = append(all, c)
		}
	}
	r.cappedBefore = all
	return all
}

// specOf returns the CPU limit in the spec of a pod that runs the container, as far as the Tracker knows.
func (r *reflex) specOf(pod, container string) (milli int64, known bool) {
	e := r.get(pod)
	if e == nil || !e.present || e.info.container != container {
		return 0, false
	}
	return e.info.limits.CPUMilli, true
}

// usesIdle returns what a container may use of the node's idle CPU. It may use none while
// its earlier loans are not settled, or if another manager has set a limit of its pod.
func usesIdle(e *entry) (capped, bool) {
	c := capped{
		allocation: e.info.allocation.CPUMilli, ceiling: e.info.ceilingMilli,
		spec: e.info.limits.CPUMilli,
	}
	return c, c.allocation > 0 && c.ceiling >= c.allocation && e.owed == 0 && !e.info.foreign
}

// borrows returns what a container may use of its loans. The reflex writes its limit.
func (r *reflex) borrows(e *entry) (capped, bool) {
	b := r.balance(e)
	allocation := e.allocation
	return capped{
		allocation: allocation, ceiling: allocation + max(0, b.Borrowed.CPUMilli-b.Lent.CPUMilli),
		bound: func(milli int64) { e.mostCPU = milli },
	}, allocation > 0 && e.managed()
}
