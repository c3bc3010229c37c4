package api

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestFunctionOf(t *testing.T) {
	revision := types.NamespacedName{Namespace: "ns", Name: "rev-00001"}
	if got := FunctionOf(revision, nil); got != revision {
		t.Errorf("FunctionOf() = %s, want the revision itself", got)
	}
	replica := types.NamespacedName{Namespace: "ns", Name: "rev-00001-libra-copy-00001"}
	if got := FunctionOf(replica, map[string]string{CopyOfLabel: "rev-00001"}); got != revision {
		t.Errorf("FunctionOf() of a copy = %s, want its original", got)
	}
}
