package invocation

import (
	"context"
	"math/rand/v2"
	"net/http"

	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
)

// routed is what Route leaves for the choice of a request's pod.
type routed struct {
	order     uint64 // of a program's blocks, where it leaves that to chance
	forwarded bool   // another activator has passed it on
}

type routedKey struct{}

func routedFrom(ctx context.Context) routed {
	r, _ := ctx.Value(routedKey{}).(routed)
	return r
}

// Route reports whether a request is to be passed on to an activator in another zone, and to which zone. reachable says
// whether a zone has an activator that can be reached. If the request is not passed on, the caller must serve the one
// that Route returns. Route reserves nothing for it.
func (m *Manager) Route(r *http.Request, forwarded bool, reachable func(zone string) bool) (zone string, forward bool, here *http.Request) {
	rev, id := activatorhandler.RevisionFrom(r.Context()), activatorhandler.RevIDFrom(r.Context())
	if rev == nil || !api.OptedIn(rev.Labels) || rev.Spec.GetContainerConcurrency() == 0 || !m.places(rev) {
		return "", false, r
	}
	known := routed{order: rand.Uint64() | 1, forwarded: forwarded}
	// What was passed on to this zone is placed by it, although nothing may be routed on from here.
	if !forwarded {
		router, ok := m.program(rev).(placement.Router)
		if !ok || !router.Routes(id.Namespace) {
			return "", false, r
		}
		if zone, forward = m.placer.slots.Route(id, int(rev.Spec.GetContainerConcurrency()), router, placement.Ask{Now: m.clock.Now(), Order: known.order}, reachable); forward {
			return zone, true, r
		}
	}
	return "", false, r.WithContext(context.WithValue(r.Context(), routedKey{}, known))
}
