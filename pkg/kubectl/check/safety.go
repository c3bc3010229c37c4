package check

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

var safetyChecks = []Check{
	{
		ID: "settings", run: configLibra, installed: true,
		Looks: "the ConfigMap `config-libra`: are there settings in it that no part accepts?",
		Fine:  "all settings are accepted",
	},
	{
		ID: "harvest-policies", run: harvestPolicies, installed: true,
		Looks: "HarvestPolicies: is there one that no part accepts, or that is only partly in force?",
		Fine:  "every HarvestPolicy is accepted, and all of it is in force",
	},
	{
		ID: "admission-policies", run: admissionPolicies, installed: true,
		Looks: "the admission policies `libra-harvest-policies`, `libra-resizer` and `libra-settings`, and that each is bound: RBAC alone does not keep the resizer to limits of functions",
		Fine:  "the admission policies are in force",
	},
	{
		ID: "critical-pods", run: criticalPods, installed: true,
		Looks: "quotas in Libra's namespaces: some clusters accept critical pods only in a namespace with a quota for them, and another quota may be full",
		Fine:  "Libra's namespaces accept critical pods",
	},
}

func configLibra(ctx context.Context, c *Cluster) ([]Finding, error) {
	about := Object{"configmap", settings.Namespace, settings.ConfigMap}
	cm := &corev1.ConfigMap{}
	if found, err := c.get(ctx, settings.Namespace, settings.ConfigMap, cm); err != nil {
		return nil, err
	} else if !found {
		return []Finding{failure(about, applyLibra, "it is not there: every function is only observed")}, nil
	}
	var found []Finding
	if _, err := settings.Parse(cm.Data); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			found = append(found, failure(about, fmt.Sprintf("kubectl -n %s edit configmap %s", settings.Namespace, settings.ConfigMap), "refused: %s", line))
		}
	}
	return found, nil
}

func harvestPolicies(ctx context.Context, c *Cluster) ([]Finding, error) {
	all, err := c.harvestPolicies(ctx)
	var found []Finding
	for _, namespace := range slices.Sorted(maps.Keys(all)) {
		p := all[namespace]
		if c.namespace != "" && namespace != c.namespace && namespace != settings.Namespace {
			continue
		}
		about := Object{"harvestpolicy", namespace, p.Name}
		edit := fmt.Sprintf("kubectl -n %s edit harvestpolicy %s", namespace, p.Name)
		// A condition for an earlier edit, or not written yet, says nothing about this one.
		told := func(name string) *metav1.Condition {
			c := meta.FindStatusCondition(p.Status.Conditions, name)
			if c == nil || c.Status != metav1.ConditionFalse || c.ObservedGeneration != p.Generation {
				return nil
			}
			return c
		}
		if accepted, inForce := told(v1alpha1.ConditionAccepted), told(v1alpha1.ConditionInForce); accepted != nil {
			found = append(found, failure(about, edit, "refused: %s", accepted.Message))
		} else if inForce != nil {
			found = append(found, warning(about, edit, "not all of it is in force: %s", inForce.Message))
		}
	}
	return found, err
}

func admissionPolicies(ctx context.Context, c *Cluster) ([]Finding, error) {
	var found []Finding
	for _, name := range []string{"libra-harvest-policies", "libra-resizer", "libra-settings"} {
		for kind, object := range map[string]client.Object{
			"validatingadmissionpolicy":        &admissionv1.ValidatingAdmissionPolicy{},
			"validatingadmissionpolicybinding": &admissionv1.ValidatingAdmissionPolicyBinding{},
		} {
			if is, err := c.get(ctx, "", name, object); err != nil {
				return found, err
			} else if !is {
				found = append(found, failure(Object{Kind: kind, Name: name}, applyLibra, "it is not there: the API server accepts what this policy is to refuse"))
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Object.String(), b.Object.String()) })
	return found, nil
}

// criticalQuota is our own quota, and refuses nothing.
const criticalQuota = "critical-pods"

// limitsPods says whether a quota on the resource can keep one of Libra's pods from being created.
func limitsPods(name corev1.ResourceName) bool {
	of := strings.TrimPrefix(strings.TrimPrefix(string(name), "limits."), corev1.DefaultResourceRequestsPrefix)
	switch corev1.ResourceName(of) {
	case corev1.ResourcePods, "count/pods", corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	return false
}

func criticalPods(ctx context.Context, c *Cluster) ([]Finding, error) {
	var found []Finding
	for _, namespace := range []string{settings.Namespace, settings.AgentNamespace} {
		var list corev1.ResourceQuotaList
		if err := c.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return found, err
		}
		ours := false
		for _, q := range list.Items {
			ours = ours || q.Name == criticalQuota
			for name, hard := range q.Status.Hard {
				if used, ok := q.Status.Used[name]; ok && limitsPods(name) && used.Cmp(hard) >= 0 {
					about := Object{"resourcequota", q.Namespace, q.Name}
					found = append(found, failure(about, fmt.Sprintf("kubectl -n %s delete resourcequota %s", q.Namespace, q.Name), "it is full: %s of %s for %s, so the API server may refuse Libra's pods", used.String(), hard.String(), name))
				}
			}
		}
		if !ours {
			found = append(found, warning(Object{"resourcequota", namespace, criticalQuota}, applyLibra,
				"it is not there: some clusters refuse pods of the class %s in a namespace without such a quota", "system-node-critical"))
		}
	}
	return found, nil
}
