package invocation

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/config"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/queue"
	"libra.dev/libra/pkg/api"
	livesettings "libra.dev/libra/pkg/settings"
)

// QueueSettings are the cluster's.
type QueueSettings interface {
	Mode(annotations map[string]string) api.Mode
	Source(namespace, node string) api.Source
}

var _ QueueSettings = (*livesettings.Live)(nil)

// QueueOrder returns what tells the queue of the request in a context. That waits for
// nothing, so that a request of a function of which nothing is known yet counts as unknown.
func (m *Manager) QueueOrder(s QueueSettings) func(ctx context.Context, revision types.NamespacedName) queue.Request {
	return func(ctx context.Context, revID types.NamespacedName) queue.Request {
		req := requestFrom(ctx)
		if req == nil {
			return queue.Request{}
		}
		order := m.orderOf(s, req.rev)
		known := queue.Request{Order: order}
		if order == queue.ShortestFirst {
			known.Timeout = timeoutOf(req.rev)
			// What an upgraded connection will carry is not known.
			if p, ok := m.predictor.Known(ctx, revID, req.size); ok && !req.upgrade {
				known.Predicted = cmp.Or(p.CPUTime, p.Duration)
			}
		}
		return known
	}
}

// orderOf presumes that the node decides as the namespace does: a request has no node
// before it has a slot.
func (m *Manager) orderOf(s QueueSettings, rev *v1.Revision) queue.Order {
	switch {
	case rev.Spec.GetContainerConcurrency() == 0:
		// Nobody waits but for the first pod, which then takes all at once.
		return queue.Stock
	case s.Mode(rev.Annotations) != api.ModeFull, s.Source(rev.Namespace, "") != api.SourceNode:
		return queue.Stock
	}
	value, ok := rev.Annotations[api.QueueAnnotation]
	if !ok {
		return queue.ShortestFirst
	}
	if value != api.QueueFIFO {
		m.metrics.onRefusedAnnotation(api.QueueAnnotation)
		m.warn(rev, eventAnnotationRefused, api.QueueAnnotation, "Refused an order; requests go in the order in which they came",
			fmt.Errorf("annotation %s is %.64q, want %s, or none for the shortest first", api.QueueAnnotation, value, api.QueueFIFO))
	}
	return queue.FIFO
}

// timeoutOf is how long a request may wait and run before something has to come of it.
func timeoutOf(rev *v1.Revision) time.Duration {
	seconds := int64(config.DefaultRevisionTimeoutSeconds)
	if s := rev.Spec.TimeoutSeconds; s != nil {
		seconds = *s
	}
	if s := rev.Spec.ResponseStartTimeoutSeconds; s != nil && *s > 0 {
		seconds = min(seconds, *s)
	}
	return time.Duration(seconds) * time.Second
}
