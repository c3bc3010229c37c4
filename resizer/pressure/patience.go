package pressure

import "time"

const (
	// tolerated is the share of the time that a pod may wait for CPU without being in want of it,
	// and toleratedAtOnce is how much more it may wait in a moment.
	//
	// Both were measured on two cores at 250 Hz, beside functions of half a core each. A service
	// that computes for 0.5 ms every 10 ms waits 2 to 4 % of the time, with stock's limits or
	// without any, and its P95 does not change. One that computes for 5 ms every 35 ms waits 2 to
	// 5 % beside functions that keep to their limits, and 12 % (P95 9 → 11 to 13 ms) beside
	// functions that do not. A pod that never rests waits 2 % beside functions that compute now and
	// then, limits or not, and 35 % beside functions that burn without limits. A wait lasts a tick
	// of the kernel, 4 ms, or nothing, so one or two in 20 ms say nothing.
	tolerated       = 0.05
	toleratedAtOnce = 8 * time.Millisecond
)

// A pod may wait longer than that because of functions that keep to their allocations, its own
// siblings, or anything else: one that never rests, beside a function with two threads and half a
// core, waits 20 % of its time, and no less when the function is held. So the waiting of a pod
// while functions are held is learned, and tolerated.
const (
	learnTime    = 300 * time.Millisecond
	unlearnTime  = 10 * time.Second
	learnedExtra = 1.1
)

// Functions is what functions did in the time that a reading covers.
type Functions struct {
	// Held reports that they have kept to their allocations for a while, so that bystanders would
	// wait without Libra as they do now.
	Held bool
	// Above is what they used above their allocations, in CPUs.
	Above float64
}

// blame returns the share of the node that is used above allocations, 0 to 1. A pod that waits does
// so behind everything that runs, and on a full node most of that is there with stock, too.
func (f Functions) blame(cpus int64) float64 { return min(1, max(0, f.Above/float64(cpus))) }

// patience is how much more than tolerated a pod has waited lately. The zero value is ready.
type patience struct {
	level   time.Duration
	learned float64 // share of the time that it waited while functions were held
}

// beyond returns how much of waited, the time that a pod has waited while passed went by, is too
// much and is due to what functions do.
func (p *patience) beyond(waited, passed time.Duration, functions Functions, cpus int64) time.Duration {
	if functions.Held && passed > 0 {
		weight := min(1, float64(passed)/float64(learnTime))
		p.learned += (min(1, float64(waited)/float64(passed)) - p.learned) * weight
	} else {
		p.learned -= p.learned * min(1, float64(passed)/float64(unlearnTime))
	}
	blame := functions.blame(cpus)
	share := max(tolerated, blame*learnedExtra*p.learned)
	atOnce := toleratedAtOnce + time.Duration(blame*p.learned*float64(period))
	p.level = max(0, p.level+time.Duration(blame*float64(waited)-share*float64(passed)))
	tooMuch := max(0, p.level-atOnce)
	p.level -= tooMuch
	return tooMuch
}

// own separates a pod's waiting for others from its waiting because of its own limits. The kernel
// counts both alike, and only afterwards, once in a period of the limit, says how long the latter
// was. So the waiting of a pod with limits counts only after a period in which that could have been
// reported. The zero value is ready.
type own struct {
	since        time.Time
	older, newer time.Duration // not counted yet; negative when more throttling was reported
}

const (
	// period is the usual period of CPU limits.
	period = 100 * time.Millisecond
	// mostCarried is how much more throttling than waiting is remembered: throttling is summed over
	// CPUs, and would otherwise excuse waiting forever.
	mostCarried = 2 * period
)

// without returns how much to count now for a pod that has waited, and that its own limits have
// throttled; throttled is notLimited when it has none.
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
