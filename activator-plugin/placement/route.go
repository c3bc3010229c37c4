package placement

import "k8s.io/apimachinery/pkg/types"

// Route asks a program whether to pass a request on to an activator in another zone before it waits for a slot. The
// pods that it may go to are those with a free slot here: this activator's, or all if it has none.
func (s *Slots) Route(id types.NamespacedName, concurrency int, router Router, ask Ask, reachable func(zone string) bool) (zone string, forward bool) {
	r := s.find(id)
	if r == nil {
		// It is not kept: nothing would say when to forget it.
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
	switch {
	// While all requests are passed on, none is placed, which would end the doubts.
	case !r.doubted.IsZero() && ask.Now.After(r.doubted):
		r.endAllDoubts()
	case r.stale:
		r.deal()
	}
	r.slots.useViews(ask.Now)
	r.query = Query{Revision: r.id, Now: ask.Now, Order: ask.Order, Forwarded: ask.Forwarded, slots: r.slots, memory: r.query.memory}
	return router.Route(&r.query, r.free, reachable)
}

// findFree returns the pods that have a free slot here and are not in doubt: this activator's, because the program is asked
// about those first, or all if it has none.
func (r *Revision) findFree() []Candidate {
	if r.mine.free > 0 {
		return r.mine.candidates[:r.mine.free]
	}
	r.find(r.trusted)
	return r.some
}
