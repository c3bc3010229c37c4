package invocation

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/types"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/activator-plugin/placement"
)

type throttler struct {
	manager *Manager
	next    activatorhandler.Throttler
}

// Try begins an invocation once Knative has a slot for it and has picked a pod. fn forwards the request to the pod that
// it goes to, and returns when the response has ended.
func (t *throttler) Try(ctx context.Context, revID types.NamespacedName, fn func(dest string, isClusterIP bool) error) error {
	req := requestFrom(ctx)
	if req == nil {
		return t.next.Try(ctx, revID, fn)
	}
	return t.next.Try(ctx, revID, func(dest string, isClusterIP bool) error {
		req.placed = t.manager.place(ctx, req, revID, dest, isClusterIP)
		if req.placed.Outcome == placement.Refused {
			return refuse(req)
		}
		defer req.placed.Release()
		dest = req.placed.Dest
		whole := false
		defer func() {
			// A pod that broke off its response was reached: fn panicked then, so whole is false.
			if whole && req.response.status == http.StatusBadGateway && ctx.Err() == nil {
				req.placed.Doubt(t.manager.clock.Now())
			}
		}()
		end := t.manager.dispatch(ctx, req, revID, dest, isClusterIP)
		n, began := t.manager.counts.of(req.rev), t.manager.clock.Now()
		n.began(&req.seen)
		defer func() {
			ran := t.manager.clock.Since(began)
			n.ended(&req.seen, ran)
			n.took(req, ran)
		}()
		// Deferred, because fn panics when the client or the function goes away during the response.
		defer func() {
			req.abandoned = !whole && req.response.cut || ctx.Err() != nil && (!whole || req.response.failed()) ||
				req.response.status == http.StatusSwitchingProtocols
			if !whole && !req.abandoned && req.response.status != 0 {
				req.response.status = http.StatusBadGateway // whatever the function had begun with
			}
			t.manager.note(req, began)
			if end == nil {
				return
			}
			if req.abandoned {
				t.manager.metrics.onAbandoned(revID)
			}
			end(req.response.status)
		}()
		err := fn(dest, isClusterIP)
		whole = true
		return err
	})
}
