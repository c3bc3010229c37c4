package check

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

func TestSettingsThatAreRefusedAreNamed(t *testing.T) {
	about := Object{"configmap", settings.Namespace, settings.ConfigMap}
	config := &corev1.ConfigMap{ObjectMeta: at(about.Namespace, about.Name), Data: map[string]string{"mode": "on"}}
	c := &Cluster{client: fake.NewClientBuilder().WithScheme(NewScheme()).WithObjects(config).Build()}
	got, err := configLibra(t.Context(), c)
	want := []Finding{{
		Severity: Error, Object: about, Remedy: "kubectl -n libra-system edit configmap config-libra",
		Message: `refused: key "mode" of ConfigMap libra-system/config-libra: mode is "on", want observe, lend or full; until it is corrected, "observe" applies`,
	}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got\n%+v, %v, want\n%+v", got, err, want)
	}
}

// A condition for an earlier edit does not count for this one.
func TestPoliciesThatAreNotInForceAreNamed(t *testing.T) {
	policy := func(namespace string, observed int64, conditions ...metav1.Condition) *v1alpha1.HarvestPolicy {
		p := &v1alpha1.HarvestPolicy{ObjectMeta: at(namespace, v1alpha1.HarvestPolicyName)}
		p.Generation = 2
		for _, c := range conditions {
			c.ObservedGeneration = observed
			p.Status.Conditions = append(p.Status.Conditions, c)
		}
		return p
	}
	is := func(condition string, status metav1.ConditionStatus, message string) metav1.Condition {
		return metav1.Condition{Type: condition, Status: status, Message: message}
	}
	const accepted, inForce = v1alpha1.ConditionAccepted, v1alpha1.ConditionInForce
	c := &Cluster{client: fake.NewClientBuilder().WithScheme(NewScheme()).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(NewScheme())).WithObjects(
		policy("bounded", 2, is(accepted, metav1.ConditionTrue, ""), is(inForce, metav1.ConditionFalse, "less")),
		policy("fine", 2, is(accepted, metav1.ConditionTrue, ""), is(inForce, metav1.ConditionTrue, "")),
		policy("new", 0),
		policy("old", 1, is(accepted, metav1.ConditionFalse, "was"), is(inForce, metav1.ConditionFalse, "was")),
		policy("refused", 2, is(accepted, metav1.ConditionFalse, "none"), is(inForce, metav1.ConditionFalse, "see")),
	).Build()}
	got, err := harvestPolicies(t.Context(), c)
	want := []Finding{
		{Severity: Warning, Object: Object{"harvestpolicy", "bounded", "default"}, Message: "not all of it is in force: less", Remedy: "kubectl -n bounded edit harvestpolicy default"},
		{Severity: Error, Object: Object{"harvestpolicy", "refused", "default"}, Message: "refused: none", Remedy: "kubectl -n refused edit harvestpolicy default"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got\n%+v, %v, want\n%+v", got, err, want)
	}
}
