package agent

import "time"

const (
	// keptFor is how long a container's samples are kept, but no more than mostKept of them, which
	// is a minute's worth for a container that lends or borrows. They do not cover a longer
	// invocation, so it is never observed, and its function keeps its user allocation. Keeping more
	// would cost memory for each container and time at each end.
	keptFor  = 2 * time.Minute
	mostKept = int(time.Minute / sampleEvery)
	// leastRoom is the least number of samples that there is room for.
	leastRoom = 16
)

// ring holds the samples of a container, in order of time. It has room for as many as were taken
// lately: a container that works is sampled twenty times as often as one that rests. The zero
// value is empty.
type ring struct {
	room   []sample
	oldest int // its index in room
	kept   int // samples
}

// len returns the number of samples.
func (r *ring) len() int { return r.kept }

// at returns the sample that has i older ones.
func (r *ring) at(i int) *sample { return &r.room[(r.oldest+i)%len(r.room)] }

// last returns the newest sample.
func (r *ring) last() *sample { return r.at(r.kept - 1) }

// add adds the newest sample, and drops those that are too old by its time or too many.
func (r *ring) add(s sample) {
	for r.kept == mostKept || r.kept > 0 && s.at.Sub(r.at(0).at) > keptFor {
		r.oldest = (r.oldest + 1) % len(r.room)
		r.kept--
	}
	switch {
	case r.kept == len(r.room):
		r.resize(min(mostKept, max(leastRoom, 2*len(r.room))))
	case len(r.room) > leastRoom && 4*r.kept <= len(r.room):
		r.resize(len(r.room) / 2)
	}
	r.kept++
	*r.last() = s
}

func (r *ring) resize(room int) {
	resized := make([]sample, room)
	for i := range r.kept {
		resized[i] = *r.at(i)
	}
	r.room, r.oldest = resized, 0
}
