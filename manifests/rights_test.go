package manifests

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// With a right to all Leases of the namespace, one part could keep another from leading. A right to create cannot be
// limited to a name: the object's name is not known when the right is checked.
func TestPartsHaveRightsToTheirOwnLeasesAlone(t *testing.T) {
	roles := 0
	for _, role := range decode[rbacv1.Role](t, "Role") {
		var verbs []string
		for _, rule := range role.Rules {
			if !slices.Contains(rule.Resources, "leases") {
				continue
			}
			verbs = append(verbs, rule.Verbs...)
			if !slices.Equal(rule.Verbs, []string{"create"}) && !slices.Equal(rule.ResourceNames, []string{role.Name}) {
				t.Errorf("the Role %s may %v the Leases %q, want only that of its name", role.Name, rule.Verbs, rule.ResourceNames)
			}
		}
		if verbs == nil {
			continue
		}
		roles++
		if slices.Sort(verbs); !slices.Equal(verbs, []string{"create", "get", "update"}) {
			t.Errorf("the Role %s may %v Leases, want what the election of a leader takes: create, get, update", role.Name, verbs)
		}
	}
	if roles != 2 {
		t.Errorf("%d Roles have rights to Leases, want those of the resizer and the scheduler", roles)
	}
}

// onPages maps resources to their names on pages.
var onPages = map[string]string{
	"pods": "pods", "namespaces": "namespaces", "nodes": "nodes", "endpointslices": "EndpointSlices", "events": "Events",
	"harvestpolicies": "HarvestPolicies", "placementpolicies": "placement policies", "clusterplacementpolicies": "placement policies",
}

// People decide about an install by these pages, so they name all that the activator's account may read beyond Knative's.
func TestPagesNameWhatTheActivatorMayRead(t *testing.T) {
	// section returns the part of a page between two texts.
	section := func(page, begin, end string) string {
		t.Helper()
		text, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(text), begin)
		of, _, ends := strings.Cut(rest, end)
		if !found || !ends {
			t.Fatalf("docs/%s has nothing between %q and %q", page, begin, end)
		}
		return of
	}
	install := section("install.md", "## What Libra may do", "\n## ")
	sideEffects := section("side-effects.md", "the activator's account may read", "\n")
	threats := section("threat-model.md", "| activator | what Knative's can", "\n")

	resources := 0
	for _, role := range decode[rbacv1.ClusterRole](t, "ClusterRole") {
		if role.Name != "libra-activator" {
			continue
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				resources++
				of, _, _ := strings.Cut(resource, "/")
				name, known := onPages[of]
				if !known || !strings.Contains(install, name) {
					t.Errorf("docs/install.md does not name %s, which the activator may %v, as %q", resource, rule.Verbs, name)
				}
				if !slices.Contains(rule.Verbs, "list") {
					continue
				}
				if rule.APIGroups[0] == "libra.dev" {
					name = "policies"
				}
				for page, text := range map[string]string{"side-effects.md": sideEffects, "threat-model.md": threats} {
					if !strings.Contains(text, name) {
						t.Errorf("docs/%s does not name %s, which the activator may %v, as %q", page, resource, rule.Verbs, name)
					}
				}
			}
		}
	}
	if resources == 0 {
		t.Error("the activator has no rights")
	}
}
