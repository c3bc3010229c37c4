package manifests

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/pkg/kubectl/uninstall"
)

// resourceOf returns the name that rules have for a kind whose objects are deleted one by one, not with a namespace.
func resourceOf(o object) string {
	if o.Kind == "ValidatingAdmissionPolicy" || o.Kind == "MutatingAdmissionPolicy" {
		return strings.ToLower(strings.TrimSuffix(o.Kind, "y")) + "ies"
	}
	return strings.ToLower(o.Kind) + "s"
}

// Anything that the Job may not delete would stay behind.
func TestTheRemovalMayDeleteAllThatIsShipped(t *testing.T) {
	role := slices.DeleteFunc(decode[rbacv1.ClusterRole](t, "ClusterRole"), func(r rbacv1.ClusterRole) bool { return r.Name != uninstall.Job })
	if len(role) != 1 {
		t.Fatalf("there are %d ClusterRoles %s", len(role), uninstall.Job)
	}
	mayDelete := func(resource, name string) {
		if !slices.ContainsFunc(role[0].Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, resource) && slices.Contains(r.ResourceNames, name) && slices.Contains(r.Verbs, "delete")
		}) {
			t.Errorf("the ClusterRole %s has no right to delete %s %s", uninstall.Job, resource, name)
		}
	}
	for _, o := range append(all(t), rendered(t, "check")...) {
		if slices.Contains(namespaces, o.Metadata.Namespace) {
			continue
		}
		resource := resourceOf(o)
		if o.Kind != "Namespace" && o.Kind != "CustomResourceDefinition" && o.Metadata.Labels["app.kubernetes.io/part-of"] != "libra" && !labelled(t, o) {
			t.Errorf("%s %s has no label that says that it is Libra's: it would stay", o.Kind, o.Metadata.Name)
		}
		mayDelete(resource, o.Metadata.Name)
	}
	monitors, err := filepath.Glob("../dashboards/operator/podmonitor-*.yaml")
	if err != nil || len(monitors) == 0 {
		t.Fatalf("PodMonitors: %q, %v", monitors, err)
	}
	for _, file := range monitors {
		var monitor metav1.PartialObjectMetadata
		read(t, file, &monitor)
		mayDelete("podmonitors", monitor.Name)
	}
	for _, r := range role[0].Rules {
		if slices.ContainsFunc(r.Verbs, func(v string) bool { return v != "get" && v != "list" }) && len(r.ResourceNames) == 0 {
			t.Errorf("it may change any of %v", r.Resources)
		}
	}
}

// labelled reports whether a kustomization labels an object that it has.
func labelled(t *testing.T, o object) bool {
	t.Helper()
	for _, dir := range append([]string{"base/core", "check"}, roots...) {
		k, err := readKustomization(dir)
		if err != nil {
			t.Fatal(err)
		}
		found, err := render(dir, map[string]bool{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(found, func(f object) bool { return f.TypeMeta == o.TypeMeta && f.Metadata.Name == o.Metadata.Name }) && len(k.Labels) > 0 {
			return true
		}
	}
	return false
}
