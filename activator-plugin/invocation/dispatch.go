package invocation

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

// startedPrecision is the precision of a container's start time: Kubernetes cuts off the fraction of the second.
const startedPrecision = time.Second

// dispatch begins the invocation. The caller must call end exactly once, with the status of the response. end is nil
// when the pod is not known.
func (m *Manager) dispatch(ctx context.Context, req *request, revID types.NamespacedName, dest string, isClusterIP bool) (end func(status int)) {
	req.kept = kept{}
	pod, why := m.podBehind(req.rev, revID, dest, isClusterIP)
	if why != reasonNone {
		req.seen.why = why
		req.kept.Role = string(roleUnmanaged)
		m.metrics.onDispatch(revID, roleUnmanaged, why, false)
		return nil
	}
	return m.begin(ctx, req, revID, pod)
}

// begin is dispatch to a known pod.
func (m *Manager) begin(ctx context.Context, req *request, revID types.NamespacedName, pod target) (end func(status int)) {
	container := req.rev.Spec.GetContainer()
	owed := allocationOf(container)
	of := m.settings.For(revID.Namespace)
	set := m.termsOf(req.rev, of)
	inv := pool.Invocation{
		Pod:          pod.pod,
		Domain:       of.DomainOf(revID.Namespace),
		Size:         req.size,
		Allocation:   owed.limit,
		MinRemaining: set.minLoan,
	}
	if n := req.rev.Spec.GetContainerConcurrency(); n > 1 {
		inv.Concurrency = int(n)
	}
	inv.Ranked = m.ranks(set.mode, revID.Namespace, pod.node)
	why := m.whyNoLoan(req, pod)
	prediction, known := m.predict(ctx, revID, req, why, inv.Ranked)
	in := m.pods.servedBy(pod)
	bypassed := m.bypassed(req.rev)
	var could, allowed volumes
	if known && why == reasonNone {
		could = classify(owed, set, prediction, inv.Concurrency)
		if set.mode == api.ModeFull {
			req.placed.Debit(demand(owed, could, prediction), req.arrived)
		}
		if bypassed {
			could.surplus = api.Resources{}
		}
		req.seen.could, req.seen.perSlot = could, could.inFullPod(owed, inv.Concurrency)
	}
	quick := false
	if known && inv.Ranked {
		could, quick = could.ranked(prediction, inv.Concurrency, m.whyStarting(req, pod) != reasonNone)
	}
	r := roleObserved
	switch {
	case why != reasonNone:
	case !known:
		why = reasonNoPrediction
		if !inv.Ranked && set.mode == api.ModeFull {
			inv.WantMostMilli = unpredictedMost * owed.limit.CPUMilli
		}
	default:
		inv.Predicted, inv.Duration, inv.WithoutLoan = prediction.Demand, lasts(owed, prediction), withoutLoan(owed, prediction)
		allowed = set.allow(could)
		inv.Surplus, inv.Want = allowed.surplus, allowed.want
		if inv.Concurrency > 1 {
			inv.Need = needOf(owed, set, prediction)
		}
		if !inv.Ranked && set.lendsIdle() && !bypassed {
			inv.IdleCPUMilli = idleCPU(owed, set.keep)
		}
		r, why = set.roleOf(allowed, could)
	}
	withheld := req.seen.could.minus(allowed)
	if inv.Ranked {
		inv.CPUTime = prediction.CPUTime
	}
	req.seen.why, req.seen.bypassed = why, bypassed
	got := &req.kept
	got.Pod, got.Node, got.Allocation = pod.pod, pod.node, owed.limit
	got.Mode, got.Ranked, got.Role = set.mode, inv.Ranked, string(r)
	got.Predicted, got.Prediction, got.Quick = known, prediction, quick
	// Only some of the invocations that the pool does nothing for are reported. A copy is made to be reported.
	nothing := !inv.Ranked && inv.Surplus.IsZero() && inv.Want.IsZero() && inv.WantMostMilli == 0 && inv.IdleCPUMilli == 0 && why != reasonCopy
	alone := req.rev.Spec.GetContainerConcurrency() == 1
	// A pod that may be lent from needs a Begin, which gives it that back. Another activator's invocation may have left it
	// lending.
	mayIdle := !inv.Ranked && set.lendsIdle() && !bypassed && idleCPU(owed, set.keep) > 0
	unneeded := (quick || nothing && alone) && !m.lifecycle.lends(pod.pod) && !in.lendsIdle() && !mayIdle
	// Upgraded connections last, and nothing is predicted for them: one by one, a few functions' would use up what may be in
	// flight.
	upgraded := req.upgrade && !alone
	if upgraded || (unneeded || nothing && !alone) && !in.sample(m.clock.Now()) {
		if upgraded {
			m.metrics.onDispatch(revID, r, req.seen.reason(), inv.Ranked)
		} else {
			m.metrics.onDispatch(revID, roleUnmanaged, reasonSampled, false)
		}
		var leave func()
		if unneeded {
			left := in.untold.begin()
			leave = func() {
				left()
				// The pool has to know that its pod may go on computing.
				if req.abandoned {
					m.lifecycle.join(revID, pod.node, named(inv, req, revID))(true)
				}
			}
		} else {
			// Others in its pod, also from other activators, must not lend what it needs, nor count as alone.
			left := m.lifecycle.join(revID, pod.node, named(inv, req, revID))
			leave = func() { left(req.abandoned) }
		}
		began := m.clock.Now()
		return func(int) {
			if upgraded {
				m.pods.noteServed(pod)
			}
			leave()
			m.metrics.onVolumes(revID, withheld, true, m.clock.Since(began))
		}
	}
	inv = named(inv, req, revID)
	inv.Others = in.untold.others()
	f := m.lifecycle.start(revID, pod.node, inv)
	if f == nil {
		req.seen.why, req.seen.bypassed = reasonTooMany, false
		got.Role = string(roleUnmanaged)
		m.metrics.onDispatch(revID, roleUnmanaged, reasonTooMany, false)
		leave := m.lifecycle.join(revID, pod.node, inv)
		return func(int) { leave(req.abandoned) }
	}
	got.told, got.Surplus, got.Want = true, inv.Surplus, inv.Want
	f.withheld, f.quick = withheld, quick
	if !inv.Ranked {
		f.promised = req.placed.PromisedCPUMilli
	}
	if bypassed {
		why = reasonNotInPath
	}
	m.metrics.onDispatch(revID, r, why, inv.Ranked)
	besideUntold := in.untold.beside()
	return func(status int) {
		m.pods.noteServed(pod)
		in := m.pods.servedBy(pod)
		in.noteIdle(inv.IdleCPUMilli > 0)
		f.besideUntold = besideUntold() || bypassed || m.bypassed(req.rev)
		f.abandoned = req.abandoned
		f.noted = req.noted
		f.finish(status)
	}
}

// named adds what only an invocation that is reported to the pool needs.
func named(inv pool.Invocation, req *request, revID types.NamespacedName) pool.Invocation {
	inv.ID = req.invocationID()
	inv.Function = api.FunctionOf(revID, req.rev.Labels).String()
	inv.Configuration = configurationOf(req.rev)
	inv.Trace = api.Traceparent(req.span)
	return inv
}

// predict asks only for a prediction that can be used, because the request may have to wait for it.
func (m *Manager) predict(ctx context.Context, revID types.NamespacedName, req *request, why reason, ranks bool) (p predict.Prediction, ok bool) {
	if req.upgrade || why != reasonNone && !(ranks && why.predictable()) {
		return p, false
	}
	return m.predictor.Predict(ctx, revID, req.size)
}

// termsOf returns a revision's terms, and counts and warns of annotations that are refused.
func (m *Manager) termsOf(rev *v1.Revision, of settings.Settings) terms {
	set, refused := termsOf(rev.Annotations, of)
	for _, err := range refused {
		m.metrics.onRefusedAnnotation(err.annotation)
		m.warn(rev, eventAnnotationRefused, err.annotation, err.consequence(), err)
	}
	return set
}

// configurationOf returns the namespace/name of a revision's Configuration (for a copy, of the original's), or "" for a
// revision that was made without one. Kubernetes bounds the values of labels, but not those of annotations, which
// anybody can set who can make a revision.
func configurationOf(rev *v1.Revision) string {
	name := rev.Labels[serving.ConfigurationLabelKey]
	if api.IsCopy(rev.Labels) {
		name = rev.Annotations[api.CopyOfConfigurationAnnotation]
	}
	// It would match a name of any length with a regular expression.
	if len(name) > validation.DNS1123SubdomainMaxLength || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return ""
	}
	return rev.Namespace + "/" + name
}

// podBehind returns the pod at dest, or the reason why it is not known.
func (m *Manager) podBehind(rev *v1.Revision, revID types.NamespacedName, dest string, isClusterIP bool) (target, reason) {
	if isClusterIP {
		m.warn(rev, eventPodsNotReached, string(reasonClusterIP), "Not managing the function",
			fmt.Errorf("its pods are reached only through the ClusterIP %s, so the pod and node of a request are unknown", dest))
		return target{}, reasonClusterIP
	}
	ip, _, err := net.SplitHostPort(dest)
	if err != nil {
		ip = dest
	}
	container := cmp.Or(rev.Spec.GetContainer().Name, api.UserContainer)
	pod, ok := m.pods.find(ip, revID, container)
	if !ok {
		return target{}, reasonPodUnknown
	}
	return pod, reasonNone
}

// whyNoLoan returns why the invocation can neither lend nor borrow, whatever is predicted, or reasonNone.
func (m *Manager) whyNoLoan(req *request, pod target) reason {
	switch {
	case pod.why != reasonNone:
		return pod.why
	case api.IsCopy(req.rev.Labels):
		return reasonCopy
	case req.upgrade:
		return reasonUpgrade
	case req.rev.Spec.GetContainerConcurrency() == 0:
		return reasonConcurrency
	default:
		return m.whyStarting(req, pod)
	}
}

// whyStarting returns why the container may still have to start up, or reasonNone.
func (m *Manager) whyStarting(req *request, pod target) reason {
	switch {
	case !req.arrived.After(pod.started.Add(startedPrecision)):
		return reasonColdStart
	case !m.pods.hasServed(pod):
		return reasonFirst
	default:
		return reasonNone
	}
}

// roleOf returns the role of an invocation with a prediction, and reasonMode if its mode restricts it.
func (s terms) roleOf(allowed, could volumes) (role, reason) {
	why := reasonNone
	if allowed != could {
		why = reasonMode
	}
	lends, borrows := !allowed.surplus.IsZero(), !allowed.want.IsZero()
	switch {
	case s.mode == api.ModeObserve:
		return roleObserved, reasonMode
	case lends && borrows:
		return roleBoth, why
	case lends:
		return roleDonor, why
	case borrows:
		return roleBorrower, why
	default:
		return roleNeither, why
	}
}
