package agent

import "time"

const (
	// observeFreely is how many invocations of a container are all observed: those of two are
	// as many as the predictor keeps of a function.
	observeFreely = 100
	// observeEvery is about how often one is observed after that. The predictor follows
	// what changes as well by some of many, and what it does with each costs more than what
	// the pool, the agent and the activator do with the invocation.
	observeEvery = time.Second
	// thinnedMost is how long none is, when they become fewer.
	thinnedMost = 10 * observeEvery
)

// thinning chooses which invocations of a container are observed. The zero value is ready.
type thinning struct {
	observed int       // so far
	at       time.Time // when the last was
	ended    int       // since then
	skip     int       // how many more are left out
}

// wants says whether the invocation that has just ended is to be observed. It goes by how
// many have ended, not by the time: what is in flight at a given time is more often a long
// one.
func (t *thinning) wants(now time.Time) bool {
	t.ended++
	if t.skip > 0 && now.Sub(t.at) < thinnedMost {
		t.skip--
		return false
	}
	if t.observed++; t.observed > observeFreely {
		passed := max(now.Sub(t.at), time.Millisecond)
		t.skip = int(observeEvery*time.Duration(t.ended)/passed) - 1
	}
	t.at, t.ended = now, 0
	return true
}
