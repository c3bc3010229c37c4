package machine

import (
	"slices"
	"testing"
)

func TestPublished(t *testing.T) {
	gomod := "module k8s.io/kubernetes\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/client-go => ./staging/src/k8s.io/client-go\n)\n"
	got, err := published([]byte(gomod), "1.35.4")
	if want := []string{"k8s.io/api => k8s.io/api v0.35.4", "k8s.io/client-go => k8s.io/client-go v0.35.4"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := published([]byte("replace"), "1.35.4"); err == nil {
		t.Error("what is no go.mod has replaces")
	}
}
