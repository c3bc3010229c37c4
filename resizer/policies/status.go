package policies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// Reasons of conditions, in addition to those of Events.
const (
	reasonRead        = "Read"
	reasonAsWritten   = "AsWritten"
	reasonNotAccepted = "NotAccepted"
)

// found is what policies apply to.
type found struct {
	byNamespace map[string]*functions
	all         functions
	allocatable []int64 // milli CPU of each node
}

// functions are those of one namespace, or all.
type functions struct {
	revisions, pods int32
	// limits are the CPU limits, in milli CPU, of functions without a bound of their own; in found.all, of
	// those whose namespace has no bound, either.
	limits []int64
}

// look finds what policies apply to. Without policies it reads nothing.
func (w *Writer) look(ctx context.Context, policies []*unstructured.Unstructured) (*found, error) {
	f := &found{byNamespace: map[string]*functions{}}
	if len(policies) == 0 {
		return f, nil
	}
	bounded := map[string]bool{}
	for _, object := range policies {
		_, own, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "maxCPU")
		bounded[object.GetNamespace()] = own && object.GetNamespace() != settings.Namespace
	}
	var revisions servingv1.RevisionList
	if err := w.cached.List(ctx, &revisions, client.MatchingLabels{api.EnabledLabel: api.EnabledValue}); err != nil {
		return nil, fmt.Errorf("listing the Revisions that opted in: %w", err)
	}
	for i := range revisions.Items {
		r := &revisions.Items[i]
		if api.IsCopy(r.Labels) || r.Labels[serving.RoutingStateLabelKey] == string(servingv1.RoutingStateReserve) {
			continue
		}
		of := f.byNamespace[r.Namespace]
		if of == nil {
			of = &functions{}
			f.byNamespace[r.Namespace] = of
		}
		limit := api.FromList(r.Spec.GetContainer().Resources.Limits).CPUMilli
		if _, own := r.Annotations[api.MaxCPUAnnotation]; own {
			limit = 0
		}
		of.add(r, limit)
		if bounded[r.Namespace] {
			limit = 0
		}
		f.all.add(r, limit)
	}
	var nodes corev1.NodeList
	if err := w.cached.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		f.allocatable = append(f.allocatable, nodes.Items[i].Status.Allocatable.Cpu().MilliValue())
	}
	return f, nil
}

func (f *functions) add(r *servingv1.Revision, limitMilli int64) {
	f.revisions++
	if n := r.Status.ActualReplicas; n != nil {
		f.pods += max(0, *n)
	}
	if limitMilli > 0 {
		f.limits = append(f.limits, limitMilli)
	}
}

// of returns the functions that the policy of a namespace applies to.
func (f *found) of(namespace string) *functions {
	if namespace == settings.Namespace {
		return &f.all
	}
	if found := f.byNamespace[namespace]; found != nil {
		return found
	}
	return &functions{}
}

// statusOf returns the status of a policy at now. set are the settings that its namespace has with it.
func statusOf(p *v1alpha1.HarvestPolicy, refused error, f *found, set settings.Settings, now time.Time) v1alpha1.HarvestPolicyStatus {
	of := f.of(p.Namespace)
	status := v1alpha1.HarvestPolicyStatus{
		ObservedGeneration: p.Generation, Functions: of.revisions, Pods: of.pods, Conditions: slices.Clone(p.Status.Conditions),
	}
	say := func(condition, reason string, message ...string) {
		c := metav1.Condition{
			Type: condition, Status: metav1.ConditionTrue, Reason: reason, ObservedGeneration: p.Generation, LastTransitionTime: metav1.NewTime(now),
		}
		if len(message) > 0 {
			c.Status, c.Message = metav1.ConditionFalse, strings.Join(message, "; ")
		}
		meta.SetStatusCondition(&status.Conditions, c)
	}
	if refused != nil {
		say(v1alpha1.ConditionAccepted, eventRefused, refused.Error())
		say(v1alpha1.ConditionInForce, reasonNotAccepted, "see the condition "+v1alpha1.ConditionAccepted)
		return status
	}
	say(v1alpha1.ConditionAccepted, reasonRead)
	if why := bounds(&p.Spec, of, f.allocatable, set); len(why) > 0 {
		say(v1alpha1.ConditionInForce, eventBounded, why...)
	} else {
		say(v1alpha1.ConditionInForce, reasonAsWritten)
	}
	return status
}

// bounds returns what in a policy does not hold as it is written, and why.
func bounds(spec *v1alpha1.HarvestPolicySpec, of *functions, allocatable []int64, set settings.Settings) (why []string) {
	for _, m := range []struct {
		field string
		mode  v1alpha1.Mode
	}{{"mode", spec.Mode}, {"maxMode", spec.MaxMode}} {
		if mode := api.Mode(m.mode); mode != "" && mode.AtMost(set.MaxMode) != mode {
			why = append(why, fmt.Sprintf("spec.%s is %s, but functions get no more than %s: that is the lowest of maxMode in this policy, maxMode in HarvestPolicy %s/%s and max-mode in ConfigMap %s",
				m.field, m.mode, set.MaxMode, settings.Namespace, v1alpha1.HarvestPolicyName, settings.ConfigMap))
		}
	}
	count := func(all []int64, is func(int64) bool) (n int) {
		for _, value := range all {
			if is(value) {
				n++
			}
		}
		return n
	}
	if q := spec.MaxCPU; q != nil {
		if n := count(of.limits, func(limit int64) bool { return limit > q.MilliValue() }); n > 0 {
			why = append(why, fmt.Sprintf("spec.maxCPU is %s, which does not lower the higher CPU limit of %d of the functions", q, n))
		}
	}
	if q := spec.CPUReserve; q != nil && !q.IsZero() {
		if n := count(allocatable, func(milli int64) bool { return milli <= q.MilliValue() }); n > 0 {
			why = append(why, fmt.Sprintf("spec.cpuReserve is %s, and %d of %d nodes have no more allocatable CPU than that: no function goes beyond its limit there", q, n, len(allocatable)))
		}
	}
	return why
}
