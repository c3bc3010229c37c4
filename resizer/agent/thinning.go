package agent

import "time"

const (
	// observeFreely is how many invocations of a container are all observed. Those of two
	// containers are as many as the predictor keeps of a function.
	observeFreely = 100
	// observeEvery is roughly how often one is observed after that. A few of many show the
	// predictor what changes just as well, and its work on each costs more than what the
	// pool, the agent and the activator do for the invocation.
	observeEvery = time.Second
	// thinnedMost is the longest time without an observation when invocations become fewer.
	thinnedMost = 10 * observeEvery
)

// thinning chooses which invocations of a container are observed. The zero value is ready
// to use.
type thinning struct {
	observed int       // so far
	at       time.Time // when the last was
	ended    int       // since then
	skip     int       // how many more are left out
}

// wants says whether to observe the invocation that has just ended. It goes by how many
// have ended, not by time: an invocation that is in flight at a given moment is more often
// a long one.
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
