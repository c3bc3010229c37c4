package invocation

import (
	"context"
	"net"

	"k8s.io/apimachinery/pkg/types"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

type throttler struct {
	manager *Manager
	next    activatorhandler.Throttler
}

// Try is where an invocation begins: Knative has picked the pod, and fn forwards
// the request to it and returns when the response has ended.
func (t *throttler) Try(ctx context.Context, revID types.NamespacedName, fn func(dest string, isClusterIP bool) error) error {
	req := requestFrom(ctx)
	if req == nil {
		return t.next.Try(ctx, revID, fn)
	}
	return t.next.Try(ctx, revID, func(dest string, isClusterIP bool) error {
		if f := t.manager.dispatch(ctx, req, revID, dest, isClusterIP); f != nil {
			// Deferred, because a client that goes away makes fn panic.
			defer func() { f.finish(req.response.status) }()
		}
		return fn(dest, isClusterIP)
	})
}

// dispatch begins the invocation. It is nil for one that is not managed.
func (m *Manager) dispatch(ctx context.Context, req *request, revID types.NamespacedName, dest string, isClusterIP bool) *flight {
	container := req.rev.Spec.GetContainer()
	pod, why := m.podBehind(revID, dest, isClusterIP, container.Name)
	if why != reasonNone {
		m.metrics.onDispatch(revID, roleUnmanaged, why)
		return nil
	}

	inv := pool.Invocation{
		ID:            req.invocationID(),
		Function:      api.FunctionOf(revID, req.rev.Labels).String(),
		Configuration: configurationOf(req.rev),
		Pod:           pod.pod,
		Domain:        revID.Namespace,
		Size:          req.size,
		MinRemaining:  m.minLoan,
	}
	r := roleObserved
	// Nobody may have to wait for a prediction that could not be used.
	if why = whyNoLoan(req, pod); why == reasonNone {
		prediction, ok := m.predictor.Predict(ctx, revID, req.size)
		if ok {
			inv.Predicted, inv.Duration = prediction.Demand, prediction.Duration
			inv.Surplus, inv.Want = classify(allocationOf(container), prediction, m.minLoan)
			r = roleOf(inv.Surplus, inv.Want)
		} else {
			why = reasonNoPrediction
		}
	}
	f := m.lifecycle.start(revID, pod.node, inv)
	if f == nil {
		r, why = roleUnmanaged, reasonTooMany
	}
	m.metrics.onDispatch(revID, r, why)
	return f
}

// configurationOf is empty for a revision that was made without one.
func configurationOf(rev *v1.Revision) string {
	name := rev.Labels[serving.ConfigurationLabelKey]
	if api.IsCopy(rev.Labels) {
		name = rev.Annotations[api.CopyOfConfigurationAnnotation]
	}
	if name == "" {
		return ""
	}
	return rev.Namespace + "/" + name
}

// podBehind returns the pod at dest, or the reason why it cannot be told.
func (m *Manager) podBehind(revID types.NamespacedName, dest string, isClusterIP bool, container string) (target, reason) {
	if isClusterIP {
		if m.logged.first(revID, string(reasonClusterIP)) {
			m.logger.Warnw("Not managing a function: its pods are only reached through their ClusterIP, so the pod and node of a request are not known. This is logged once.",
				"function", revID.String(), "dest", dest)
		}
		return target{}, reasonClusterIP
	}
	ip, _, err := net.SplitHostPort(dest)
	if err != nil {
		ip = dest
	}
	if container == "" {
		container = api.UserContainer
	}
	pod, ok := m.pods.find(ip, revID, container)
	if !ok {
		return target{}, reasonPodUnknown
	}
	return pod, reasonNone
}

// whyNoLoan returns why the invocation can neither lend nor borrow whatever is
// predicted, if it cannot.
func whyNoLoan(req *request, pod target) reason {
	switch {
	case pod.why != reasonNone:
		return pod.why
	case api.IsCopy(req.rev.Labels):
		return reasonCopy
	case req.upgrade:
		return reasonUpgrade
	case req.rev.Spec.GetContainerConcurrency() != 1:
		return reasonConcurrency
	default:
		return reasonNone
	}
}

func roleOf(surplus, want api.Resources) role {
	switch {
	case !surplus.IsZero() && !want.IsZero():
		return roleBoth
	case !surplus.IsZero():
		return roleDonor
	case !want.IsZero():
		return roleBorrower
	default:
		return roleNeither
	}
}
