package api

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestFunctionOf(t *testing.T) {
	revision := &metav1.ObjectMeta{Namespace: "ns", Name: "rev-00001"}
	if got := FunctionOf(revision).String(); got != "ns/rev-00001" {
		t.Errorf("FunctionOf() = %s, want the revision itself", got)
	}
	revision.Name = "rev-00001-libra-copy-00001"
	revision.Labels = map[string]string{CopyOfLabel: "rev-00001"}
	if got := FunctionOf(revision).String(); got != "ns/rev-00001" {
		t.Errorf("FunctionOf() of a copy = %s, want its original", got)
	}
}
