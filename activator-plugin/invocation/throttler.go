package invocation

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	activatorhandler "knative.dev/serving/pkg/activator/handler"

	"libra.dev/libra/activator-plugin/placement"
)

// unreachedAfter is how long a request waits for a connection to its pod, at least, until the pod counts as one that
// could not be reached although the client or the timeout ended the wait. It is longer than any pod that is there takes.
const unreachedAfter = time.Second

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
		end := t.manager.dispatch(ctx, req, revID, dest, isClusterIP)
		n, began := t.manager.counts.of(req.rev), t.manager.clock.Now()
		defer func() {
			// A pod that broke off its response was reached: fn panicked then, so whole is false.
			if now := t.manager.clock.Now(); whole && (req.response.status == http.StatusBadGateway && ctx.Err() == nil ||
				req.connects && !req.connected.Load() && now.Sub(began) >= unreachedAfter) {
				req.placed.Doubt(now)
			}
		}()
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
		req.connected.Store(false)
		err := fn(dest, isClusterIP)
		whole = true
		return err
	})
}
