package agent

import "time"

const (
	// keptFor is for how long samples are kept of a container, but for no more than mostKept, which
	// are a minute's of one that lends or borrows. A longer invocation is not covered by them and so
	// never observed; its function keeps its user allocation. To keep more would cost each
	// container memory and each end time.
	keptFor  = 2 * time.Minute
	mostKept = int(time.Minute / sampleEvery)
	// leastRoom is for how many samples there is room at least.
	leastRoom = 16
)

// ring is the samples of a container, in the order of time. The room for them is for as many as
// were taken lately: a container that works is sampled twenty times as often as one that rests.
// The zero value is empty.
type ring struct {
	room   []sample
	oldest int // where it is in room
	kept   int // samples
}

// len is how many there are.
func (r *ring) len() int { return r.kept }

// at is one of them, by how many are older.
func (r *ring) at(i int) *sample { return &r.room[(r.oldest+i)%len(r.room)] }

// last is the newest.
func (r *ring) last() *sample { return r.at(r.kept - 1) }

// add adds the newest, and leaves out those that are too old by its time.
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
