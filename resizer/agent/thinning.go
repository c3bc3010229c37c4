package agent

import (
	"math/rand/v2"
	"time"
)

const (
	// observeFreely is how many invocations of a container are all observed. Those of two
	// containers are as many as the predictor keeps of a function.
	observeFreely = 100
	// observeEvery is roughly how often one is observed after that. A few of many show the
	// predictor what changes just as well, and its work on each costs more than what the
	// pool, the agent and the activator do for the invocation.
	observeEvery = time.Second
	// thinnedMost is the longest time before fewer are left out when invocations become fewer.
	thinnedMost = 10 * observeEvery
)

// thinning chooses which invocations of a container are observed. The zero value is ready
// to use.
type thinning struct {
	observed int       // so far
	at       time.Time // when skip was last drawn
	ended    int       // since then
	skip     int       // how many more are left out
}

// wants says whether to observe the invocation that has just ended. It goes by how many
// have ended, not by time: an invocation that is in flight at a given moment is more often
// a long one.
func (t *thinning) wants(now time.Time) bool {
	t.ended++
	if t.skip > 0 && now.Sub(t.at) >= thinnedMost {
		t.skip = min(t.skip, t.draw(now))
	}
	if t.skip > 0 {
		t.skip--
		return false
	}
	if t.observed++; t.observed > observeFreely {
		t.skip = t.draw(now)
	} else {
		t.at, t.ended = now, 0
	}
	return true
}

// draw returns how many to leave out, by how many have ended lately. It is random: of calls that
// differ in turn, every second would always be the same one.
func (t *thinning) draw(now time.Time) int {
	passed := max(now.Sub(t.at), time.Millisecond)
	each := int(observeEvery * time.Duration(t.ended) / passed)
	t.at, t.ended = now, 0
	return rand.IntN(2*max(1, each) - 1)
}
