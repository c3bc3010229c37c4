package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Whatever else was named would be Libra's, and would have to be put back.
func TestOnlyTheActivatorsImageIsSet(t *testing.T) {
	applied := filepath.Join(t.TempDir(), "applied")
	var d demo
	d.kubectl, _ = fakeKubectl(t, "cat >"+applied)
	if err := d.setActivator(t.Context(), activatorPod("registry.test/libra-activator:1")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(applied)
	if err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	var got object
	if err := yaml.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := object{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": object{"name": "activator", "namespace": "knative-serving"},
		"spec": object{"template": object{"spec": object{"containers": []any{
			object{"name": "activator", "image": "registry.test/libra-activator:1"},
		}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheActivatorIsToldOfAnotherPredictor(t *testing.T) {
	applied := filepath.Join(t.TempDir(), "applied")
	var d demo
	d.kubectl, _ = fakeKubectl(t, "cat >"+applied)
	if err := d.setActivator(t.Context(), activatorPod("libra-activator:1", variable(predictorURLEnv, "http://10.1.2.3:4567"))); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(applied)
	if err != nil {
		t.Fatal(err)
	}
	var got appsv1.Deployment
	if err := yaml.UnmarshalStrict(data, &got); err != nil {
		t.Fatal(err)
	}
	want := []corev1.Container{{Name: "activator", Image: "libra-activator:1", Env: []corev1.EnvVar{{Name: "LIBRA_PREDICTOR_URL", Value: "http://10.1.2.3:4567"}}}}
	if diff := cmp.Diff(want, got.Spec.Template.Spec.Containers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDisownKeepsTheFieldsOfOthers(t *testing.T) {
	var object metav1.ObjectMeta
	if err := json.Unmarshal([]byte(`{"resourceVersion": "42", "managedFields": [
		{"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
		{"manager": "libra", "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}},
		{"manager": "kube-controller-manager", "operation": "Update", "subresource": "status"}]}`), &object); err != nil {
		t.Fatal(err)
	}
	patch, err := disown(object)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"op":"replace","path":"/metadata/resourceVersion","value":"42"},` +
		`{"op":"replace","path":"/metadata/managedFields","value":[` +
		`{"manager":"helm","operation":"Apply","fieldsV1":{"f:spec":{"f:replicas":{}}}},` +
		`{"manager":"kube-controller-manager","operation":"Update","subresource":"status"}]}]`
	var got, wanted any
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
