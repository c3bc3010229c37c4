//go:build install

package install

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// settle is how long controllers may take to come to rest after a change.
const settle = 30 * time.Second

// passing are the kinds whose objects come and go by themselves.
var passing = []string{
	"ControllerRevision", "Endpoints", "EndpointSlice", "Event", "Lease", "Pod", "PodMetrics", "ReplicaSet",
	"IPAddress", // of Services, each time under new names
}

// each visits all objects of the cluster, by resource, except those of passing kinds.
func (u *user) each(visit func(name string, o unstructured.Unstructured)) {
	u.Helper()
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(u.config).ServerPreferredResources()
	if err != nil {
		u.Fatal(err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			u.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains(passing, r.Kind) {
				continue
			}
			var objects unstructured.UnstructuredList
			objects.SetGroupVersionKind(version.WithKind(r.Kind + "List"))
			if err := u.kube.List(u.Context(), &objects); client.IgnoreNotFound(err) != nil {
				u.Fatalf("listing %s: %v", r.Name, err)
			}
			for _, o := range objects.Items {
				visit(fmt.Sprintf("%s %s/%s", r.Name, o.GetNamespace(), o.GetName()), o)
			}
		}
	}
}

// fields returns all objects of the cluster by kind and name, field by field, managed fields included.
func (u *user) fields() map[string]object {
	u.Helper()
	all := map[string]object{}
	u.each(func(name string, o unstructured.Unstructured) { all[name] = fieldsOf(o) })
	return all
}

// changed returns which fields of which objects differ from before, once controllers have come to rest.
func (u *user) changed(before map[string]object) []string {
	u.Helper()
	for deadline := time.Now().Add(settle); ; <-time.After(time.Second) {
		if found := changes(before, u.fields()); len(found) == 0 || time.Now().After(deadline) {
			return found
		}
	}
}

// objects returns all objects of the cluster, with the managers of their fields.
func (u *user) objects() map[string]string {
	u.Helper()
	all := map[string]string{}
	u.each(func(name string, o unstructured.Unstructured) {
		managers := map[string]bool{}
		for _, m := range o.GetManagedFields() {
			managers[m.Manager] = true
		}
		all[name] = strings.Join(slices.Sorted(maps.Keys(managers)), ",")
	})
	return all
}

// left returns the objects that were not there before, and those with other managers.
func left(before, after map[string]string) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		was, there := before[name]
		switch {
		case !there:
			found = append(found, name)
		case was != after[name]:
			found = append(found, fmt.Sprintf("%s: managed by %s, was by %s", name, after[name], was))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, there := after[name]; !there {
			found = append(found, name+" is missing")
		}
	}
	return found
}
