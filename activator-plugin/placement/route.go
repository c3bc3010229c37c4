package placement

import "k8s.io/apimachinery/pkg/types"

// Route asks a program whether a request to a revision is to be passed on to an activator in another zone, before it
// waits for a slot. The pods that it may have are those with a free slot here, also of other activators.
func (s *Slots) Route(id types.NamespacedName, concurrency int, router Router, ask Ask, reachable func(zone string) bool) (zone string, forward bool) {
	s.mu.RLock()
	r := s.revisions[id]
	s.mu.RUnlock()
	if r == nil {
		// It is not kept: nothing would say when it is over.
		r = newRevision(s, id)
	}
	if r.concurrency.Load() != int64(concurrency) {
		r.setConcurrency(concurrency)
	}
	return r.route(router, ask, reachable)
}

func (r *Revision) route(router Router, ask Ask, reachable func(zone string) bool) (zone string, forward bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale {
		r.deal()
	}
	r.query = Query{Revision: r.id, Now: ask.Now, Order: ask.Order, Forwarded: ask.Forwarded}
	r.findFree()
	return router.Route(&r.query, r.some, reachable)
}

// findFree finds the pods that have a free slot here.
func (r *Revision) findFree() {
	r.some, r.these = r.some[:0], r.these[:0]
	for _, p := range r.all {
		if r.mayHave(p) {
			r.some, r.these = append(r.some, r.candidate(p, r.destOf(p))), append(r.these, p)
		}
	}
}

// mayHave says whether a pod may have one that the program allows none of this activator's for.
func (r *Revision) mayHave(p *pod) bool { return r.hasRoom(p) && !p.doubted }
