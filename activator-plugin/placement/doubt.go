package placement

import "time"

// doubtedFor is how long no request is moved to a pod that could not be reached. That it was may have
// been the function's own answer.
const doubtedFor = 10 * time.Second

// Doubt says that the pod could not be reached. Knative asks pods itself, and may know not to pick it: no
// other request is moved there for a while, or until Knative picks it, or no other pod is left for a request.
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
	case now.After(r.doubted), r.mine.free == 0:
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

// trusted says that a pod has a free slot here, and that it could be reached.
func (r *Revision) trusted(p *pod) bool { return r.hasRoom(p) && !p.doubted }
