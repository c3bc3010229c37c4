package duplicator

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

const (
	// wantedInputs is how many inputs of a revision are kept. Fewer are enough if no more
	// arrive within gatherFor of the first one.
	wantedInputs = 3
	gatherFor    = 30 * time.Second

	maxBody      = 1 << 20
	maxFunctions = 16
	maxBytes     = 32 << 20

	// maxKnown bounds the revisions that are remembered. Beyond it, some are asked about
	// again early.
	maxKnown = 4096
	// maxAsking bounds the revisions to ask about. Others are asked about when their next
	// request arrives.
	maxAsking = 256
)

// input is what is kept of a request. Headers may hold secrets, so only the content type
// is kept, which is needed to read the body.
type input struct {
	method        string
	path, rawPath string
	query         string
	contentType   string
	body          []byte
}

// key identifies a revision: one that is created again under the same name has another
// UID.
type key struct {
	types.NamespacedName
	uid types.UID
}

func keyOf(rev *v1.Revision) key {
	return key{types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}, rev.UID}
}

// gathered is what has been kept of a revision so far.
type gathered struct {
	rev     *v1.Revision
	since   time.Time // of the first input
	inputs  []input
	pending int
}

// job is a revision to duplicate, with the inputs to do it with.
type job struct {
	rev    *v1.Revision
	inputs []input
}

func (j job) bytes() int64 {
	var n int64
	for i := range j.inputs {
		n += int64(len(j.inputs[i].body))
	}
	return n
}

// standing is what is known about a revision: that it is to be duplicated, or that
// nothing is to be done about it before until.
type standing struct {
	wanted bool
	until  time.Time
}

// inputs holds the requests that are kept, only in memory, until they are replayed.
// Nothing is kept of a revision before it is known that it is to be duplicated.
type inputs struct {
	mu       sync.Mutex
	gathered map[key]*gathered
	known    map[key]standing
	asking   map[key]struct{} // not known, with a request that could be kept
	bytes    int64            // reserved by requests in flight, kept, or in a job
	full     chan struct{}    // has an element when a revision has all its inputs
	asked    chan struct{}    // has an element when there is more in asking
}

func newInputs() *inputs {
	return &inputs{
		gathered: make(map[key]*gathered),
		known:    make(map[key]standing),
		asking:   make(map[key]struct{}),
		full:     make(chan struct{}, 1),
		asked:    make(chan struct{}, 1),
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// open reports whether another input of the revision is wanted, or may be.
func (in *inputs) open(k key, now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s := in.known[k]; !s.wanted && now.Before(s.until) {
		return false
	}
	g := in.gathered[k]
	return g == nil || len(g.inputs)+g.pending < wantedInputs
}

// toAsk returns the revisions for which answer is to be called.
func (in *inputs) toAsk() []key {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Collect(maps.Keys(in.asking))
}

func (in *inputs) answer(k key, s standing, now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.asking, k)
	in.know(k, s, now)
}

// reserve makes room for one more input of length bytes. If ok, the caller must call keep
// or abandon. why is set if there was no room. An unknown revision is no reason: it is
// asked about.
func (in *inputs) reserve(rev *v1.Revision, length int64, now time.Time) (ok bool, why reason) {
	k := keyOf(rev)
	in.mu.Lock()
	defer in.mu.Unlock()
	if s := in.known[k]; !s.wanted {
		if !now.Before(s.until) && len(in.asking) < maxAsking {
			in.asking[k] = struct{}{}
			wake(in.asked)
		}
		return false, reasonNone
	}
	g := in.gathered[k]
	switch {
	case g != nil && len(g.inputs)+g.pending >= wantedInputs:
		return false, reasonNone
	case g == nil && len(in.gathered) >= maxFunctions:
		return false, reasonTooManyFunctions
	case in.bytes+length > maxBytes:
		return false, reasonTooManyBytes
	case g == nil:
		g = &gathered{rev: rev}
		in.gathered[k] = g
	}
	g.pending++
	in.bytes += length
	return true, reasonNone
}

// keep stores an input for which room was reserved.
func (in *inputs) keep(k key, i input, now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	g := in.gathered[k]
	if g == nil { // taken meanwhile
		in.bytes -= int64(len(i.body))
		return
	}
	g.pending--
	if len(g.inputs) == 0 {
		g.since = now
	}
	g.inputs = append(g.inputs, i)
	if len(g.inputs) == wantedInputs {
		wake(in.full)
	}
}

// abandon gives back the room that was reserved for an input.
func (in *inputs) abandon(k key, length int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.bytes -= length
	g := in.gathered[k]
	if g == nil {
		return
	}
	g.pending--
	if g.pending == 0 && len(g.inputs) == 0 {
		delete(in.gathered, k)
	}
}

// take returns a revision whose inputs are to be used now: the one that has waited
// longest. No more of its inputs are gathered for settledFor, unless done sets another
// time.
func (in *inputs) take(now time.Time) (job, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	var first key
	var found *gathered
	for k, g := range in.gathered {
		due := len(g.inputs) == wantedInputs || len(g.inputs) > 0 && now.Sub(g.since) >= gatherFor
		if due && (found == nil || g.since.Before(found.since)) {
			first, found = k, g
		}
	}
	if found == nil {
		return job{}, false
	}
	delete(in.gathered, first)
	in.know(first, standing{until: now.Add(settledFor)}, now)
	return job{rev: found.rev, inputs: found.inputs}, true
}

// done forgets the inputs of a job. No more inputs of its revision are gathered before
// until.
func (in *inputs) done(j job, until, now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.bytes -= j.bytes()
	in.know(keyOf(j.rev), standing{until: until}, now)
}

// refuse has no inputs of a revision gathered before until. It returns true the first
// time.
func (in *inputs) refuse(k key, until, now time.Time) (first bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s := in.known[k]; !s.wanted && now.Before(s.until) {
		return false
	}
	in.know(k, standing{until: until}, now)
	return true
}

// know must be called with mu held.
func (in *inputs) know(k key, s standing, now time.Time) {
	if _, there := in.known[k]; !there && len(in.known) >= maxKnown {
		maps.DeleteFunc(in.known, func(_ key, s standing) bool { return !s.wanted && !now.Before(s.until) })
		for other := range in.known {
			if len(in.known) < maxKnown {
				break
			}
			delete(in.known, other)
		}
	}
	in.known[k] = s
}
