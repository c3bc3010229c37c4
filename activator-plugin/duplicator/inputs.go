package duplicator

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
)

const (
	// wantedInputs of a revision are kept, or as many as came within gatherFor of the
	// first one.
	wantedInputs = 3
	gatherFor    = 30 * time.Second

	maxBody      = 1 << 20
	maxFunctions = 16
	maxBytes     = 32 << 20

	// maxSettled bounds what is remembered of revisions that are not to be looked at
	// for a time. Past it, some are looked at again early.
	maxSettled = 4096
)

// input is what is kept of a request. Its headers are not, for there are secrets in
// them; of these only the content type is needed to read the body.
type input struct {
	method        string
	path, rawPath string
	query         string
	contentType   string
	body          []byte
}

// key is a revision; one that is made anew under a name has another UID.
type key struct {
	types.NamespacedName
	uid types.UID
}

func keyOf(rev *v1.Revision) key {
	return key{types.NamespacedName{Namespace: rev.Namespace, Name: rev.Name}, rev.UID}
}

// gathered is what was kept of a revision so far.
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

// inputs are the requests kept in memory, and nowhere else, until they are replayed.
type inputs struct {
	mu       sync.Mutex
	gathered map[key]*gathered
	settled  map[key]time.Time // until when
	bytes    int64             // reserved by requests in flight, kept, or in a job
	full     chan struct{}     // has an element when a revision has all its inputs
}

func newInputs() *inputs {
	return &inputs{
		gathered: make(map[key]*gathered),
		settled:  make(map[key]time.Time),
		full:     make(chan struct{}, 1),
	}
}

// open says whether another input of the revision is wanted.
func (in *inputs) open(k key, now time.Time) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if now.Before(in.settled[k]) {
		return false
	}
	g := in.gathered[k]
	return g == nil || len(g.inputs)+g.pending < wantedInputs
}

// reserve makes room for one more input of length bytes, which keep or abandon must
// follow. Its reason is not reasonNone when there is none.
func (in *inputs) reserve(rev *v1.Revision, length int64, now time.Time) (ok bool, why reason) {
	k := keyOf(rev)
	in.mu.Lock()
	defer in.mu.Unlock()
	if now.Before(in.settled[k]) {
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

// keep keeps an input that was reserved.
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
		select {
		case in.full <- struct{}{}:
		default:
		}
	}
}

// abandon gives back what was reserved.
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

// take returns a revision whose inputs are to be used now, the one that waits longest
// first. It is not gathered for again before it is settled anew, or settledFor is over.
func (in *inputs) take(now time.Time, settledFor time.Duration) (job, bool) {
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
	in.settle(first, now.Add(settledFor), now)
	return job{rev: found.rev, inputs: found.inputs}, true
}

// done forgets the inputs of a job, and gathers none of its revision until then.
func (in *inputs) done(j job, until, now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.bytes -= j.bytes()
	in.settle(keyOf(j.rev), until, now)
}

// refuse gathers nothing of a revision until then. It is true the first time.
func (in *inputs) refuse(k key, until, now time.Time) (first bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if now.Before(in.settled[k]) {
		return false
	}
	in.settle(k, until, now)
	return true
}

// settle presumes the lock.
func (in *inputs) settle(k key, until, now time.Time) {
	if len(in.settled) >= maxSettled {
		maps.DeleteFunc(in.settled, func(_ key, t time.Time) bool { return !now.Before(t) })
	}
	if len(in.settled) >= maxSettled {
		for other := range in.settled {
			delete(in.settled, other)
			break
		}
	}
	in.settled[k] = until
}
