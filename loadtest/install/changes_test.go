package install

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestChanges(t *testing.T) {
	of := func(text string) object {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		return fieldsOf(o)
	}
	before := map[string]object{
		"same": of(`{metadata: {name: same, resourceVersion: "1", generation: 1}, status: {observedGeneration: 1}}`),
		"gone": of(`{metadata: {name: gone}}`),
		"deployments a/activator": of(`{metadata: {name: activator, managedFields: [{manager: libra, operation: Apply, time: "2026-01-01T00:00:00Z", fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}]},
			spec: {args: [a, b], replicas: 1}}`),
	}
	after := map[string]object{
		"same": of(`{metadata: {name: same, resourceVersion: "7", generation: 3}, status: {observedGeneration: 3}}`),
		"new":  of(`{metadata: {name: new}}`),
		"deployments a/activator": of(`{metadata: {name: activator, annotations: {"libra.dev/stock-image": x}, managedFields: [{manager: libra, operation: Apply, time: "2026-01-02T00:00:00Z", fieldsType: FieldsV1,
			fieldsV1: {"f:spec": {}, "f:status": {}}}]}, spec: {args: [a], replicas: 2}}`),
	}
	want := []string{
		`deployments a/activator: .metadata.annotations.libra.dev/stock-image is new: "x"`,
		`deployments a/activator: .metadata.managedFields[libra Apply].f:status is new: "{}"`,
		`deployments a/activator: .spec.args[1] is missing, was "b"`,
		`deployments a/activator: .spec.replicas is "2", was "1"`,
		"gone is missing", "new is new",
	}
	if diff := cmp.Diff(want, changes(before, after)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if same := changes(before, before); len(same) > 0 {
		t.Errorf("it differs from itself: %q", same)
	}
}
