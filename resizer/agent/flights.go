package agent

import (
	"slices"
	"time"

	"libra.dev/libra/pkg/pool"
)

// ageError is by how much the age of a flight may be off for reasons other than the time
// that a reading of the pool took.
const ageError = 2 * time.Millisecond

// flight is a request in a pod. The pool gives it no name here, but it began at some time
// between two, by the agent's clock, which every state narrows.
type flight struct {
	earliest, latest time.Time
	work
}

// ran is how long the request has been in flight, at least.
func (f flight) ran(now time.Time) time.Duration { return max(0, now.Sub(f.latest)) }

// sight is a state's word of the flights in a pod.
type sight struct {
	flights         []pool.Flight
	asked, answered time.Time // of the pool
}

// follow takes in which flights are in the pod now, and says when those that are new
// began, and whether any that was known has ended. A flight is one that was known when it
// may have begun at the same time and was predicted the same: two that are alike in both
// have used the same, too.
func follow(known []flight, s sight) (flights []flight, begun []time.Time, ended bool) {
	matched := 0
	rest := known // both are in the order of their Begins
	for _, seen := range s.flights {
		f := flight{
			earliest: s.asked.Add(-seen.Age - ageError),
			latest:   s.answered.Add(-seen.Age + ageError),
			work:     work{predicted: seen.CPUTime},
		}
		i := slices.IndexFunc(rest, f.same)
		if i < 0 {
			begun = append(begun, s.asked.Add(-seen.Age))
		} else {
			f.used = rest[i].used
			f.earliest, f.latest = later(f.earliest, rest[i].earliest), earlier(f.latest, rest[i].latest)
			rest = rest[i+1:]
			matched++
		}
		flights = append(flights, f)
	}
	return flights, begun, matched < len(known)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (f flight) same(o flight) bool {
	return f.predicted == o.predicted && !f.latest.Before(o.earliest) && !o.latest.Before(f.earliest)
}

// divide divides what the pod used among its flights.
func divide(flights []flight, used time.Duration) {
	for i := range flights {
		flights[i].used += used / time.Duration(len(flights))
	}
}
