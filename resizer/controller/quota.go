package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// quotas finds the ResourceQuotas that count the CPU limits of pods. It is made for one look at a
// node, and reads each namespace once.
//
// A ceiling is many times what an owner configured. In a quota it would take up the room of pods
// that are yet to be made, although everything that owners configured fits.
type quotas struct {
	kube        client.Reader
	byNamespace map[string][]corev1.ResourceQuota
}

func quotasOf(kube client.Reader) *quotas {
	return &quotas{kube: kube, byNamespace: map[string][]corev1.ResourceQuota{}}
}

// besideQuotas returns how much of a ceiling goes into the pod's spec: nothing beyond what its
// owner configured if a quota counts it. The node agent sees that the spec lacks the ceiling, and
// sets it in the cgroup, as when the API server refuses it.
func (c *Controller) besideQuotas(ctx context.Context, n *node, m *managedPod, ceilingMilli int64, quotas *quotas) int64 {
	quota, err := quotas.counting(ctx, m.pod)
	if err != nil {
		logf.FromContext(ctx).V(1).Info("leaving a CPU ceiling as it is", "node", n.name, "pod", m.name, "error", err.Error())
		return max(m.owed.CPUMilli, m.ceiling.milli)
	}
	if quota != "" && quota != m.ceiling.countedBy {
		ceilingRefusedEvent(m.pod, m.user.Name, ceilingMilli, m.owed.CPUMilli, fmt.Sprintf(
			"the ResourceQuota %q counts limits.cpu, and would have less room for other pods", quota)).record(c.recorder)
	}
	if m.ceiling.countedBy = quota; quota != "" {
		return m.owed.CPUMilli
	}
	return ceilingMilli
}

// counting returns the name of the first quota that counts the pod's CPU limit, empty when there is
// none.
func (q *quotas) counting(ctx context.Context, pod *corev1.Pod) (string, error) {
	all, ok := q.byNamespace[pod.Namespace]
	if !ok {
		var list corev1.ResourceQuotaList
		if err := q.kube.List(ctx, &list, client.InNamespace(pod.Namespace)); err != nil {
			return "", fmt.Errorf("listing the ResourceQuotas of namespace %s: %w", pod.Namespace, err)
		}
		all = list.Items
		// A cache lists in any order, and an owner who has heard of one quota should not hear of
		// another.
		slices.SortFunc(all, func(a, b corev1.ResourceQuota) int { return cmp.Compare(a.Name, b.Name) })
		q.byNamespace[pod.Namespace] = all
	}
	for i := range all {
		if countsCPULimit(&all[i], pod) {
			return all[i].Name, nil
		}
	}
	return "", nil
}

// countsCPULimit reports whether a quota of the pod's namespace counts its CPU limit, or may: every
// scope of a quota has to match, and a scope that is not known here might.
func countsCPULimit(quota *corev1.ResourceQuota, pod *corev1.Pod) bool {
	if _, ok := quota.Spec.Hard[corev1.ResourceLimitsCPU]; !ok {
		return false
	}
	for _, scope := range quota.Spec.Scopes {
		if !mayMatch(corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists}, pod) {
			return false
		}
	}
	if selector := quota.Spec.ScopeSelector; selector != nil {
		for _, requirement := range selector.MatchExpressions {
			if !mayMatch(requirement, pod) {
				return false
			}
		}
	}
	return true
}

// mayMatch reports whether a scope matches the pod, which has a CPU limit, or whether that is not
// known.
func mayMatch(scope corev1.ScopedResourceSelectorRequirement, pod *corev1.Pod) bool {
	deadline := pod.Spec.ActiveDeadlineSeconds
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeBestEffort:
		return false
	case corev1.ResourceQuotaScopeTerminating:
		return deadline != nil && *deadline >= 0
	case corev1.ResourceQuotaScopeNotTerminating:
		return deadline == nil || *deadline < 0
	case corev1.ResourceQuotaScopePriorityClass:
		class := pod.Spec.PriorityClassName
		switch scope.Operator {
		case corev1.ScopeSelectorOpExists:
			return class != ""
		case corev1.ScopeSelectorOpDoesNotExist:
			return class == ""
		case corev1.ScopeSelectorOpIn:
			return class != "" && slices.Contains(scope.Values, class)
		case corev1.ScopeSelectorOpNotIn:
			return !slices.Contains(scope.Values, class)
		}
	}
	return true
}

// quotaChanged passes only those events of ResourceQuotas that may change a ceiling: the use of a
// quota changes with every pod.
var quotaChanged = predicate.Funcs{
	UpdateFunc: func(e crevent.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.ResourceQuota)
		after, is := e.ObjectNew.(*corev1.ResourceQuota)
		return ok && is && !equality.Semantic.DeepEqual(keepCPULimitQuota(before).Spec, keepCPULimitQuota(after).Spec)
	},
}

// keepCPULimitQuota returns the part of a ResourceQuota that says which CPU limits it counts.
func keepCPULimitQuota(quota *corev1.ResourceQuota) *corev1.ResourceQuota {
	kept := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{
		Namespace: quota.Namespace, Name: quota.Name, UID: quota.UID, ResourceVersion: quota.ResourceVersion,
	}}
	if limit, ok := quota.Spec.Hard[corev1.ResourceLimitsCPU]; ok {
		kept.Spec.Hard = corev1.ResourceList{corev1.ResourceLimitsCPU: limit}
		kept.Spec.Scopes, kept.Spec.ScopeSelector = quota.Spec.Scopes, quota.Spec.ScopeSelector
	}
	return kept
}
