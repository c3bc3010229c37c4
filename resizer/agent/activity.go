package agent

import "time"

const (
	// A container rests when it uses less CPU than leastUse in all of restTime.
	restTime = 100 * time.Millisecond
	// Over a longer time, the threshold is leastUse for each restTime.
	leastUse = time.Millisecond
	// A container sleeps when it has rested for sleepTime.
	sleepTime = 5 * time.Second
)

// activity is what a container uses between two rests, whether or not its requests are
// seen. The zero value is that of a container at rest.
type activity struct {
	busy bool
	at   time.Time // when it was sampled last
	// since is when the container last rested, and before is what it had used by then.
	since  time.Time
	before time.Duration
	used   time.Duration // since then
	// restsSince is when the present rest began, if the container rests.
	restsSince time.Time

	// The present window ends once leastUse was used or restTime has passed.
	windowAt  time.Time
	windowCPU time.Duration
}

// add takes in what the container has used so far, and reports whether that ends a rest.
func (a *activity) add(at time.Time, cpu time.Duration) (woke bool) {
	switch {
	case a.windowAt.IsZero() || cpu < a.windowCPU:
		*a = activity{windowAt: at, windowCPU: cpu, restsSince: at}
	case worked(cpu-a.windowCPU, at.Sub(a.windowAt)):
		if woke = !a.busy; woke {
			a.busy, a.since, a.before = true, a.windowAt, a.windowCPU
		}
		a.windowAt, a.windowCPU = at, cpu
	case at.Sub(a.windowAt) >= restTime:
		switch {
		case a.busy:
			a.busy, a.restsSince = false, a.windowAt
		case cpu-a.windowCPU >= leastUse: // no longer asleep: closer samples will tell
			a.restsSince = at
		}
		a.windowAt, a.windowCPU = at, cpu
	}
	a.at, a.used = at, cpu-a.before
	return woke
}

// worked reports whether using so much CPU in so long a time is more than a rest.
func worked(used, in time.Duration) bool {
	return used >= leastUse && float64(used)*float64(restTime) >= float64(leastUse)*float64(in)
}

// rest returns when the container is last known to have rested, and what it had used by then.
func (a *activity) rest() (time.Time, time.Duration) {
	if a.busy {
		return a.since, a.before
	}
	return a.at, a.before + a.used
}

// sleeps reports whether the container has rested for sleepTime.
func (a *activity) sleeps() bool { return !a.busy && a.at.Sub(a.restsSince) >= sleepTime }
