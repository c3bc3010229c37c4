package manifests

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	sigsyaml "sigs.k8s.io/yaml"
)

// Users must be able to run the check without trusting it.
func TestTheCheckOnlyReads(t *testing.T) {
	rules := 0
	for _, o := range rendered(t, "check") {
		if o.Kind != "ClusterRole" && o.Kind != "Role" {
			continue
		}
		var role rbacv1.ClusterRole
		if err := sigsyaml.UnmarshalStrict(o.whole, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			rules++
			for _, verb := range rule.Verbs {
				if verb != "get" && verb != "list" {
					t.Errorf("it may %s %v", verb, rule.Resources)
				}
			}
			for _, resource := range rule.Resources {
				// With nodes/proxy one can run commands in pods.
				if slices.Contains([]string{"*", "secrets", "nodes/proxy"}, resource) {
					t.Errorf("it may %v %s", rule.Verbs, resource)
				}
				if resource == "configmaps" && len(rule.ResourceNames) == 0 {
					t.Error("it may read everybody's ConfigMaps")
				}
			}
		}
	}
	if rules == 0 {
		t.Error("it has no rights")
	}
}

func TestTheCheckIsAdmittedToItsNamespace(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	jobs := 0
	for _, o := range rendered(t, "check") {
		switch o.Kind {
		case "Namespace":
			if level := o.Metadata.Labels[podsecurity.EnforceLevelLabel]; level != string(podsecurity.LevelRestricted) {
				t.Errorf("its namespace enforces %q, want restricted", level)
			}
		case "Job":
			jobs++
			pod, err := podOf(o)
			if err != nil {
				t.Fatal(err)
			}
			results := evaluator.EvaluatePod(podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}, &pod.ObjectMeta, &pod.Spec)
			if refused := policy.AggregateCheckResults(results); !refused.Allowed {
				t.Errorf("its pods are refused: %s", refused.ForbiddenDetail())
			}
		}
	}
	if jobs != 1 {
		t.Errorf("it has %d Jobs", jobs)
	}
}
