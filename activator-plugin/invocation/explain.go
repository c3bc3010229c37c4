package invocation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// Explanation is what Libra does with a request, judged by the prediction alone: only the activator knows what is in flight
// beside the request and whether its container is warm.
type Explanation struct {
	Allocation api.Resources
	// Surplus is what the request could lend, and Want what it could borrow, whatever the mode.
	Surplus, Want api.Resources
	// Role is the request's role in the mode. Reason says why it has no other, and is empty when nothing withholds one.
	Role, Reason string
	// Quick says that the request is over so soon that it is not reported, and so neither lends nor borrows.
	Quick bool
	// Bypass says why requests can bypass the activator to the function's pods; nil when they cannot.
	Bypass error
	// Bypassed says that requests can bypass the activator, or could until a moment ago.
	Bypassed bool
	Refused  []error // one for each annotation that is refused
}

// Explain returns the Explanation of a request to a revision; p is nil when there is no prediction. source is that of the
// pod that the request goes to. autoscaler is the ConfigMap config-autoscaler; Explain fails if it is not valid.
func Explain(rev *v1.Revision, of settings.Settings, source api.Source, autoscaler *corev1.ConfigMap, p *predict.Prediction, now time.Time) (Explanation, error) {
	a, err := autoscalerOf(autoscaler, now)
	if err != nil {
		return Explanation{}, err
	}
	set, refused := termsOf(rev.Annotations, of)
	owed := allocationOf(rev.Spec.GetContainer())
	e := Explanation{Allocation: owed.limit}
	for _, err := range refused {
		e.Refused = append(e.Refused, err)
	}
	bypassed, bypass := a.bypass(rev, now)
	if e.Bypassed = bypassed; bypass != nil {
		e.Bypass = bypass
	}
	concurrency := int(rev.Spec.GetContainerConcurrency())
	ranked := set.mode != api.ModeObserve && source == api.SourceNode
	e.Role = string(roleObserved)
	why := reasonNone
	switch {
	case owed.limit.IsZero():
		why = reasonNoLimits
	case api.IsCopy(rev.Labels):
		why = reasonCopy
	case concurrency == 0:
		why = reasonConcurrency
	case p == nil:
		why = reasonNoPrediction
	}
	if why != reasonNone {
		e.Reason = string(why)
		if ranked && p != nil && why.predictable() {
			_, e.Quick = volumes{}.ranked(*p, concurrency, false)
		}
		return e, nil
	}
	could := classify(owed, set, *p, concurrency)
	e.Surplus, e.Want = could.surplus, could.want
	if bypassed {
		could.surplus = api.Resources{}
	}
	if ranked {
		could, e.Quick = could.ranked(*p, concurrency, false)
	}
	r, reason := set.roleOf(set.allow(could), could)
	e.Role, e.Reason = string(r), string(reason)
	return e, nil
}
