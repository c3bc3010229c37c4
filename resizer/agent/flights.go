package agent

import (
	"slices"
	"time"

	"libra.dev/libra/pkg/pool"
)

// flight is a request in a pod.
type flight struct {
	id string
	// begun is when it began. heard is when the agent was told so, and found when it found it in a
	// state; the other is zero.
	begun, heard, found time.Time
	work
}

// ran is how long the request has been in flight, as far as is known what it used in that time: what one that
// was found used before is not.
func (f flight) ran(now time.Time) time.Duration { return max(0, now.Sub(later(f.begun, f.found))) }

// flights are the requests in a pod.
type flights struct {
	known []flight
	// ended are those of which the agent was told that they have ended since the last state
	// was asked for, by ID, and when it was.
	ended map[string]time.Time
	// toldAt is when the last of those that are over soon began.
	toldAt time.Time
}

// begin takes in that a request has begun, and says whether that is new.
func (fs *flights) begin(f flight) bool {
	if _, over := fs.ended[f.id]; over || fs.index(f.id) >= 0 {
		return false
	}
	fs.known = append(fs.known, f)
	if f.predicted > 0 && f.predicted < pool.QuickCPU {
		fs.toldAt = later(fs.toldAt, f.begun)
	}
	return true
}

// end takes in that a request has ended, and says whether it was known.
func (fs *flights) end(id string, heard time.Time) bool {
	if fs.ended == nil {
		fs.ended = map[string]time.Time{}
	}
	fs.ended[id] = heard
	i := fs.index(id)
	if i < 0 {
		return false
	}
	fs.known = slices.Delete(fs.known, i, i+1)
	return true
}

func (fs *flights) index(id string) int {
	return slices.IndexFunc(fs.known, func(f flight) bool { return f.id == id })
}

// follow takes in which requests were in the pod in a state that was asked for at a time. It
// returns when those began that are new, and says whether any that was known is there no
// more. What the agent was told since then, the state may not know yet.
func (fs *flights) follow(seen []pool.Flight, asked time.Time) (begun []time.Time, ended bool) {
	for id, heard := range fs.ended {
		if heard.Before(asked) {
			delete(fs.ended, id)
		}
	}
	known := len(fs.known)
	fs.known = slices.DeleteFunc(fs.known, func(f flight) bool {
		return f.heard.Before(asked) && !slices.ContainsFunc(seen, func(s pool.Flight) bool { return s.ID == f.id })
	})
	ended = len(fs.known) < known
	for _, s := range seen {
		f := flight{id: s.ID, begun: asked.Add(-s.Age), found: asked, work: work{predicted: s.CPUTime}}
		if fs.begin(f) {
			begun = append(begun, f.begun)
		}
	}
	return begun, ended
}

// divide divides what the pod used among its requests.
func (fs *flights) divide(used time.Duration) {
	for i := range fs.known {
		fs.known[i].used += used / time.Duration(len(fs.known))
	}
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
