package invocation

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/queue"
	"libra.dev/libra/pkg/api"
)

// QueueOrder returns what the queue has to know of the request in ctx. It never blocks,
// so a request to a function that nothing is known of yet counts as unknown.
func (m *Manager) QueueOrder(ctx context.Context, revID types.NamespacedName) queue.Request {
	req := requestFrom(ctx)
	if req == nil {
		return queue.Request{}
	}
	known := queue.Request{Order: m.orderOf(req.rev)}
	if known.Order == queue.ShortestFirst {
		known.Timeout = timeoutOf(req.rev)
		// Nothing is known of what an upgraded connection will carry.
		if !req.upgrade {
			// The CPU time is known before the demand is.
			p, _ := m.predictor.Known(ctx, revID, req.size)
			known.Predicted = cmp.Or(p.CPUTime, p.Duration)
		}
	}
	return known
}

// orderOf assumes that the node's source is the namespace's: a request has no node before
// it has a slot.
func (m *Manager) orderOf(rev *v1.Revision) queue.Order {
	switch {
	case rev.Spec.GetContainerConcurrency() == 0:
		// Requests wait only for the first pod, which then takes all at once.
		return queue.Stock
	case m.settings.For(rev.Namespace).ModeOf(rev.Annotations) != api.ModeFull, m.settings.Source(rev.Namespace, "") != api.SourceNode:
		return queue.Stock
	}
	value, ok := rev.Annotations[api.QueueAnnotation]
	if !ok {
		return queue.ShortestFirst
	}
	if err := api.ParseQueue(value); err != nil {
		m.metrics.onRefusedAnnotation(api.QueueAnnotation)
		m.warn(rev, eventAnnotationRefused, api.QueueAnnotation, "Refused the queue order; requests go in the order in which they came", err)
	}
	return queue.FIFO
}

// timeoutOf returns how long a request may wait and run before its response has to have
// ended or, where that is bounded, begun.
func timeoutOf(rev *v1.Revision) time.Duration {
	timeout := longest(rev)
	if s := rev.Spec.ResponseStartTimeoutSeconds; s != nil && *s > 0 {
		timeout = min(timeout, time.Duration(*s)*time.Second)
	}
	return timeout
}
