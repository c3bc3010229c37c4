package placement

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// Views returns what functions of a domain see of a node. Picture implements it.
type Views interface {
	View(node, domain string) *View
	// Use says that a request is placed by what the Views say.
	Use(now time.Time)
}

// Lending says which source the pods of a namespace have on a node, and which domain they borrow in.
type Lending interface {
	Source(namespace, node string) api.Source
	For(namespace string) settings.Settings
}

// Slots knows the pods of each revision, and how many requests of this activator each has. Knative's
// throttler decides when a request gets a slot, and it has as many slots as there are here. Slots
// decides which pod the request goes to.
type Slots struct {
	views   Views
	lending Lending
	// changes counts how often the answers of lending may have changed.
	changes atomic.Uint64
	onNodes onNodes

	mu         sync.RWMutex
	revisions  map[types.NamespacedName]*Revision
	activators map[types.NamespacedName]activators
}

// NewSlots returns Slots that have no pods yet. Both arguments may be nil.
func NewSlots(views Views, lending Lending) *Slots {
	return &Slots{
		views: views, lending: lending,
		revisions:  map[types.NamespacedName]*Revision{},
		activators: map[types.NamespacedName]activators{},
	}
}

// LendingChanged tells the slots that sources and domains may have changed.
func (s *Slots) LendingChanged() { s.changes.Add(1) }

// viewOf returns what functions of a domain see of a node, or nil.
func (s *Slots) viewOf(domain, node string) *View {
	if node == "" || s.views == nil {
		return nil
	}
	return s.views.View(node, domain)
}

func (s *Slots) domainOf(namespace string) string {
	if s.lending == nil {
		return namespace
	}
	return s.lending.For(namespace).DomainOf(namespace)
}

func (s *Slots) useViews(now time.Time) {
	if s.views != nil {
		s.views.Use(now)
	}
}

func (s *Slots) sourceOf(namespace, node string) api.Source {
	if s.lending == nil {
		return ""
	}
	return s.lending.Source(namespace, node)
}

// Of returns a revision. concurrency, at least 1, is how many requests of one activator each of its
// pods takes at a time.
func (s *Slots) Of(id types.NamespacedName, concurrency int) *Revision {
	r := s.find(id)
	if r == nil {
		r = s.make(id)
	}
	if r.concurrency.Load() != int64(concurrency) {
		r.setConcurrency(concurrency)
	}
	return r
}

// find returns nil for a revision without pods and requests.
func (s *Slots) find(id types.NamespacedName) *Revision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revisions[id]
}

func (s *Slots) make(id types.NamespacedName) *Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.revisions[id]
	if r == nil {
		r = newRevision(s, id)
		if among, ok := s.activators[id]; ok {
			r.among = among
		}
		s.revisions[id] = r
	}
	return r
}

// Pod is what the API server says about a pod.
type Pod struct {
	Name string // namespace/name
	Node string
	// IPs are its addresses, at most one of each family.
	IPs []string
	// Ready says that the pod takes requests: it is ready, and not about to end.
	Ready bool
}

// SetPod takes in the latest state of a pod.
func (s *Slots) SetPod(id types.NamespacedName, p Pod) {
	for {
		r := s.make(id)
		// A revision without pods may be forgotten before it has this one.
		if r.setPod(p); s.find(id) == r {
			return
		}
	}
}

// RemovePod takes in that a pod is gone.
func (s *Slots) RemovePod(id types.NamespacedName, name string) {
	if r := s.find(id); r != nil && r.removePod(name) {
		s.forget(r)
	}
}

// forget drops a revision without pods and requests. A caller that has just found it goes on
// counting in the dropped one.
func (s *Slots) forget(r *Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revisions[r.id] == r && r.empty() {
		delete(s.revisions, r.id)
	}
}
