package main

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
