package pressure

import "time"

const (
	// tolerated is the share of the time that a pod may wait for CPU without being in
	// want of it, and toleratedAtOnce what it may wait more than that in a moment.
	//
	// Both are measured, on two cores at 250 Hz, beside functions of half a core each. A
	// service that computes for 0.5 ms every 10 ms waits 2 to 4 % of the time with stock's
	// limits as well as without any, and its P95 stays what it is; one that computes for 5
	// ms every 35 ms waits 2 to 5 % beside functions that keep to their limits, and 12 %
	// (P95 9 → 11 to 13 ms) beside functions that do not; a pod that never rests 2 % beside
	// functions that compute now and then, limits or not, and 35 % beside functions that
	// burn without limits. A wait lasts a tick of the kernel, 4 ms, or nothing, so one or
	// two in 20 ms say nothing.
	tolerated       = 0.05
	toleratedAtOnce = 8 * time.Millisecond
)

// patience is how much more of its time than is tolerated a pod has waited lately. The
// zero value is ready.
type patience struct{ level time.Duration }

// beyond is what of a time that a pod has waited, while some time passed, is too much.
func (p *patience) beyond(waited, passed time.Duration) time.Duration {
	p.level = max(0, p.level+waited-time.Duration(tolerated*float64(passed)))
	tooMuch := max(0, p.level-toleratedAtOnce)
	p.level -= tooMuch
	return tooMuch
}

// own tells what a pod waited for others from what it waited because of its own limits.
// The kernel counts both alike, and says only afterwards, once in a period of the limit,
// for how long it was that. So what a pod with limits waited counts when a period has
// gone by in which that could be heard of. The zero value is ready.
type own struct {
	since        time.Time
	older, newer time.Duration // not counted yet; negative when more was heard of
}

const (
	// period is the usual one of CPU limits.
	period = 100 * time.Millisecond
	// mostCarried is how much more throttling than waiting is remembered: it is summed
	// over CPUs, and would never end to excuse.
	mostCarried = 2 * period
)

// without is what to count now of a pod that is seen to have waited and to have been
// throttled by its own limits; notLimited, when it has none.
func (o *own) without(waited, throttled time.Duration, now time.Time) time.Duration {
	if throttled == notLimited {
		*o = own{}
		return waited
	}
	o.newer += waited
	o.older -= throttled
	if o.older < 0 {
		o.newer, o.older = max(-mostCarried, o.newer+o.older), 0
	}
	if now.Sub(o.since) < period {
		return 0
	}
	counted := o.older
	o.since, o.older, o.newer = now, max(0, o.newer), min(0, o.newer)
	return counted
}
