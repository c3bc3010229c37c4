package agent

import "time"

const (
	// A container rests when it uses less CPU than leastUse in all of restTime.
	restTime = 100 * time.Millisecond
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
	case cpu-a.windowCPU >= leastUse:
		if woke = !a.busy; woke {
			a.busy, a.since, a.before = true, a.windowAt, a.windowCPU
		}
		a.windowAt, a.windowCPU = at, cpu
	case at.Sub(a.windowAt) >= restTime:
		if a.busy {
			a.busy, a.restsSince = false, a.windowAt
		}
		a.windowAt, a.windowCPU = at, cpu
	}
	a.at, a.used = at, cpu-a.before
	return woke
}

// sleeps says that it has rested for long.
func (a *activity) sleeps() bool { return !a.busy && a.at.Sub(a.restsSince) >= sleepTime }
