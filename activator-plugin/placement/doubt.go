package placement

import "time"

// doubtedFor is how long no request is moved to a pod that could not be reached. The doubt is temporary: the
// failure may have been the function's own answer.
const doubtedFor = 10 * time.Second

// Doubt records that the pod could not be reached. Knative probes pods itself, and may know not to pick it.
// No other request is moved there for a while, or until Knative picks it, or until a request has no other pod
// left, Knative's own pick included.
func (c Choice) Doubt(now time.Time) {
	if c.Outcome != Moved {
		return
	}
	c.revision.mu.Lock()
	defer c.revision.mu.Unlock()
	c.pod.doubted = true
	c.revision.doubted, c.revision.stale = now.Add(doubtedFor), true
}

func (r *Revision) endDoubts(picked *pod, now time.Time) {
	switch {
	case r.doubted.IsZero():
	case picked.doubted:
		picked.doubted = false
		r.deal()
	case now.After(r.doubted), r.mine.free == 0 && !r.hasRoom(picked):
		r.endAllDoubts()
	}
}

func (r *Revision) endAllDoubts() {
	for _, p := range r.pods {
		p.doubted = false
	}
	r.doubted = time.Time{}
	r.deal()
}

// trusted says whether a pod has a free slot here and is not in doubt.
func (r *Revision) trusted(p *pod) bool { return r.hasRoom(p) && !p.doubted }
