package install

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// byThemselves has the ends of the paths of fields that change without anybody's doing.
var byThemselves = []string{
	// The first counts writes, also those that are undone; the next two count those of the spec; and the last counts a
	// Deployment's rollouts.
	".metadata.resourceVersion", ".metadata.generation", ".observedGeneration", ".metadata.annotations.deployment.kubernetes.io/revision",
	// This one stands for a Lease: its holder renews it.
	".metadata.annotations.control-plane.alpha.kubernetes.io/leader",
	// Times.
	".lastTransitionTime", ".lastUpdateTime", ".lastHeartbeatTime", ".lastProbeTime", ".lastScaleTime", ".renewTime",
}

// ofNodes has fields of Nodes alone: which images the kubelet has pulled, and which fields of the status it has reported so far.
var ofNodes = []string{".status.images", ".metadata.managedFields[kubelet Update status]"}

// object has the fields of one object of the cluster.
type object map[string]string // values by the paths of fields

func fieldsOf(o unstructured.Unstructured) object {
	fields := object{}
	managed := o.GetManagedFields()
	unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
	flatten(fields, "", o.Object)
	for _, m := range managed {
		var names map[string]any
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.Raw, &names) != nil {
			continue
		}
		flatten(fields, ".metadata.managedFields["+managerOf(m)+"]", names)
	}
	maps.DeleteFunc(fields, func(path, _ string) bool {
		passes := func(end string) bool { return strings.HasSuffix(path, end) }
		return slices.ContainsFunc(byThemselves, passes) ||
			o.GetKind() == "Node" && slices.ContainsFunc(ofNodes, func(field string) bool { return strings.HasPrefix(path, field) })
	})
	return fields
}

func managerOf(m metav1.ManagedFieldsEntry) string {
	return strings.Join(slices.DeleteFunc([]string{m.Manager, string(m.Operation), m.Subresource}, func(s string) bool { return s == "" }), " ")
}

// flatten adds the fields of a value by their paths. An empty value is a field, too.
func flatten(to object, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			flatten(to, path+"."+key, field)
		}
		if len(value) == 0 {
			to[path] = "{}"
		}
	case []any:
		for i, item := range value {
			flatten(to, fmt.Sprintf("%s[%d]", path, i), item)
		}
		if len(value) == 0 {
			to[path] = "[]"
		}
	default:
		to[path] = fmt.Sprint(value)
	}
}

func changes(before, after map[string]object) []string {
	found := []string{}
	names := maps.Clone(before)
	maps.Copy(names, after)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, there := before[name]
		is, stays := after[name]
		switch {
		case !there:
			found = append(found, name+" is new")
		case !stays:
			found = append(found, name+" is missing")
		default:
			found = append(found, changesOf(name, was, is)...)
		}
	}
	return found
}

func changesOf(name string, was, is object) (found []string) {
	paths := maps.Clone(was)
	maps.Copy(paths, is)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		old, had := was[path]
		now, has := is[path]
		switch {
		case !had:
			found = append(found, fmt.Sprintf("%s: %s is new: %.200q", name, path, now))
		case !has:
			found = append(found, fmt.Sprintf("%s: %s is missing, was %.200q", name, path, old))
		case old != now:
			found = append(found, fmt.Sprintf("%s: %s is %.200q, was %.200q", name, path, now, old))
		}
	}
	return found
}
