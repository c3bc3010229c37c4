package agent

import (
	"slices"
	"time"

	"libra.dev/libra/pkg/pool"
)

// flight is a request in a pod.
type flight struct {
	id string
	// begun is when the request began. heard is when the agent was told of it, or found is when the
	// agent found it in a state; the other is zero.
	begun, heard, found time.Time
	work
}

// ran is how long the request has been in flight, as far as its use is known: for a request that was found in
// a state, since then.
func (f flight) ran(now time.Time) time.Duration { return max(0, now.Sub(later(f.begun, f.found))) }

// flights are the requests in a pod.
type flights struct {
	known []flight
	// ended is when the agent was told of each request that has ended since it asked for the
	// last state, by ID.
	ended map[string]time.Time
	// toldAt is when the last quick request began.
	toldAt time.Time
}

// begin takes in that a request has begun, and reports whether that is new.
func (fs *flights) begin(f flight) bool {
	if fs.index(f.id) >= 0 {
		return false
	}
	return fs.add(f)
}

// add is begin for a request that is not known.
func (fs *flights) add(f flight) bool {
	if _, over := fs.ended[f.id]; over {
		return false
	}
	fs.known = append(fs.known, f)
	if f.predicted > 0 && f.predicted < pool.QuickCPU {
		fs.toldAt = later(fs.toldAt, f.begun)
	}
	return true
}

// end takes in that a request has ended, and reports whether it was known.
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

// follow takes in the requests that a state, asked for at asked, has in the pod. It returns when
// the new ones began, and whether any known one is gone. The state may lack what the agent was
// told since then.
func (fs *flights) follow(seen []pool.Flight, asked time.Time) (begun []time.Time, ended bool) {
	for id, heard := range fs.ended {
		if heard.Before(asked) {
			delete(fs.ended, id)
		}
	}
	// Thousands of requests may be in a pod.
	isKnown := make(map[string]bool, len(seen))
	for _, s := range seen {
		isKnown[s.ID] = false
	}
	known := len(fs.known)
	fs.known = slices.DeleteFunc(fs.known, func(f flight) bool {
		if _, there := isKnown[f.id]; !there {
			return f.heard.Before(asked)
		}
		isKnown[f.id] = true
		return false
	})
	ended = len(fs.known) < known
	for _, s := range seen {
		f := flight{id: s.ID, begun: asked.Add(-s.Age), found: asked, work: work{predicted: s.CPUTime}}
		if !isKnown[s.ID] && fs.add(f) {
			begun = append(begun, f.begun)
		}
	}
	return begun, ended
}

// divide divides what the pod used evenly among its requests.
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
