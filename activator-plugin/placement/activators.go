package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	netapi "knative.dev/networking/pkg/apis/networking"
	"knative.dev/serving/pkg/apis/serving"
	"knative.dev/serving/pkg/networking"
)

// activators says how many activators a revision has, and which of them this one is.
type activators struct{ index, count int }

// alone is the only activator, or one that is not among them yet: Knative has it take all pods.
var alone = activators{0, 1}

// share returns the pods that this activator takes, given ready in the order of their nodes. It returns nil to
// leave the pods as Knative assigns them. Pods are dealt out to the activators in turn, so that each activator
// has as many of every node's as the others, give or take one. It also has as many as Knative assigns to it,
// so that each request that Knative has a slot for has one here.
func (a activators) share(ready []*pod) []*pod {
	if a.count <= 1 {
		return ready
	}
	if len(ready) <= a.count {
		// No activator has more than one.
		return nil
	}
	mine := make([]*pod, 0, len(ready)/a.count+1)
	for i := a.index; i < len(ready); i += a.count {
		mine = append(mine, ready[i])
	}
	return mine
}

// SetActivators sets how many activators a revision has, and which of them this one is, from 0.
func (s *Slots) SetActivators(id types.NamespacedName, index, count int) {
	s.mu.Lock()
	s.activators[id] = activators{index, count}
	r := s.revisions[id]
	s.mu.Unlock()
	if r != nil {
		r.setActivators(activators{index, count})
	}
}

func (r *Revision) setActivators(a activators) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stale = r.stale || a != r.among
	r.among = a
}

// FollowActivators watches the same Endpoints as Knative's throttler: those of the revisions' public services,
// which list the activators while these are in the path. self is the address of this activator.
func (s *Slots) FollowActivators(informer cache.SharedIndexInformer, self string) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.setEndpoints(obj, self) },
		UpdateFunc: func(_, obj any) { s.setEndpoints(obj, self) },
		DeleteFunc: s.removeEndpoints,
	})
	return err
}

// revisionOf returns the revision whose public service has the Endpoints obj. endpoints is nil if obj is
// something else.
//
//lint:ignore SA1019 Knative's throttler goes by them.
func revisionOf(obj any) (id types.NamespacedName, endpoints *corev1.Endpoints) {
	//lint:ignore SA1019 As above.
	endpoints, ok := obj.(*corev1.Endpoints)
	if !ok || endpoints.Labels[networking.ServiceTypeKey] != string(networking.ServiceTypePublic) {
		return id, nil
	}
	id = types.NamespacedName{Namespace: endpoints.Namespace, Name: endpoints.Labels[serving.RevisionLabelKey]}
	if id.Name == "" {
		return id, nil
	}
	return id, endpoints
}

func (s *Slots) setEndpoints(obj any, self string) {
	id, endpoints := revisionOf(obj)
	if endpoints == nil {
		return
	}
	var all []string
	for _, subset := range endpoints.Subsets {
		if !slices.ContainsFunc(subset.Ports, func(p corev1.EndpointPort) bool {
			return p.Name == netapi.ServicePortNameHTTP1 || p.Name == netapi.ServicePortNameH2C
		}) {
			continue
		}
		for _, address := range subset.Addresses {
			all = append(all, address.IP)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	// While this activator is not among them, its last index and count stay.
	if index, ok := slices.BinarySearch(all, self); ok {
		s.SetActivators(id, index, len(all))
	}
}

func (s *Slots) removeEndpoints(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	if id, endpoints := revisionOf(obj); endpoints != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.activators, id)
	}
}
