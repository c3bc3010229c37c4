package check

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// Each key that an older version had in the ConfigMap is named, with what sets it where it is now and takes it away here.
func TestMovedSettingsAreNamed(t *testing.T) {
	config := func(data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: at(settings.Namespace, settings.ConfigMap), Data: data}
	}
	const (
		set  = `kubectl apply --server-side --force-conflicts --field-manager libra-%s -f - <<< '{"apiVersion":"libra.dev/v1alpha1","kind":"HarvestPolicy","metadata":{"namespace":"libra-system","name":"default"},"spec":{%[1]q:%[2]q}}' && `
		edit = "kubectl -n libra-system edit configmap config-libra"
	)
	for name, tc := range map[string]struct {
		data map[string]string
		want []Finding
	}{
		"none": {map[string]string{"mode": "full"}, nil},
		"both": {map[string]string{"min-loan": " 50ms", "cpu-reserve": "1", "mode": "full"}, []Finding{{
			Severity: Error, Object: Object{"configmap", settings.Namespace, settings.ConfigMap},
			Message: "cpu-reserve and min-loan: an older version had that here: it is in HarvestPolicy libra-system/default now, and holds while that does not say it",
			Remedy:  fmt.Sprintf(set, "cpuReserve", "1") + fmt.Sprintf(set, "minLoan", "50ms") + `kubectl -n libra-system patch configmap config-libra --type merge -p '{"data":{"cpu-reserve":null,"min-loan":null}}'`,
		}}},
		"one, and something else": {map[string]string{"cpu-reserve": "200m", "mode": "on"}, []Finding{{
			Severity: Error, Object: Object{"configmap", settings.Namespace, settings.ConfigMap},
			Message: "cpu-reserve: an older version had that here: it is in HarvestPolicy libra-system/default now, and holds while that does not say it",
			Remedy:  fmt.Sprintf(set, "cpuReserve", "200m") + `kubectl -n libra-system patch configmap config-libra --type merge -p '{"data":{"cpu-reserve":null}}'`,
		}, {
			Severity: Error, Object: Object{"configmap", settings.Namespace, settings.ConfigMap},
			Message: `refused: key "mode" of ConfigMap libra-system/config-libra: mode is "on", want observe, lend or full; until then it is "observe"`, Remedy: edit,
		}}},
	} {
		c := &Cluster{client: fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(config(tc.data)).Build()}
		got, err := configLibra(t.Context(), c)
		if err != nil || len(got) != len(tc.want) {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		for i, want := range tc.want {
			if got[i] != want {
				t.Errorf("%s: got\n%+v, want\n%+v", name, got[i], want)
			}
		}
	}
}

// What the resizer wrote of an edit before is not told of this one.
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
	c := &Cluster{client: fake.NewClientBuilder().WithScheme(newScheme()).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(newScheme())).WithObjects(
		policy("bounded", 2, is(accepted, metav1.ConditionTrue, ""), is(inForce, metav1.ConditionFalse, "less")),
		policy("fine", 2, is(accepted, metav1.ConditionTrue, ""), is(inForce, metav1.ConditionTrue, "")),
		policy("new", 0),
		policy("old", 1, is(accepted, metav1.ConditionFalse, "was"), is(inForce, metav1.ConditionFalse, "was")),
		policy("refused", 2, is(accepted, metav1.ConditionFalse, "none"), is(inForce, metav1.ConditionFalse, "see")),
	).Build()}
	got, err := harvestPolicies(t.Context(), c)
	want := []Finding{
		{Severity: Warning, Object: Object{"harvestpolicy", "bounded", "default"}, Message: "not all of it holds: less", Remedy: "kubectl -n bounded edit harvestpolicy default"},
		{Severity: Error, Object: Object{"harvestpolicy", "refused", "default"}, Message: "refused: none", Remedy: "kubectl -n refused edit harvestpolicy default"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got\n%+v, %v, want\n%+v", got, err, want)
	}
}
