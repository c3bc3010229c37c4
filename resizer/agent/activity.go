package agent

import "time"

const (
	// A container rests when it uses less CPU than leastUse in all of restTime.
	restTime = 100 * time.Millisecond
	// What is looked at after a longer time has used as much in each restTime of it.
	leastUse = time.Millisecond
	// It sleeps when it has rested for sleepTime.
	sleepTime = 5 * time.Second
)

// activity is what a container uses between two rests, whether its requests are seen or
// not. The zero value is of one that rests.
type activity struct {
	busy bool
	at   time.Time // when it was sampled last
	// since is when it last rested, and before what it had used until then.
	since  time.Time
	before time.Duration
	used   time.Duration // since then
	// restsSince is since when it rests, if it does.
	restsSince time.Time

	// The present window, which leastUse or restTime ends.
	windowAt  time.Time
	windowCPU time.Duration
}

// add takes in what the container has used so far, and says whether that ends a rest.
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
		case cpu-a.windowCPU >= leastUse: // a closer look will tell what it does
			a.restsSince = at
		}
		a.windowAt, a.windowCPU = at, cpu
	}
	a.at, a.used = at, cpu-a.before
	return woke
}

// worked says that so much CPU, used in such a time, is no rest.
func worked(used, in time.Duration) bool {
	return used >= leastUse && used*restTime >= leastUse*in
}

// rest is the last time at which the container is known to have rested, and what it had used by
// then.
func (a *activity) rest() (time.Time, time.Duration) {
	if a.busy {
		return a.since, a.before
	}
	return a.at, a.before + a.used
}

// sleeps says that it has rested for long.
func (a *activity) sleeps() bool { return !a.busy && a.at.Sub(a.restsSince) >= sleepTime }
