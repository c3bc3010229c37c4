package versions

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/mod/modfile"
)

// The activator with Libra replaces the stock one of the same release.
func TestKnativeServingIsTheRepositorys(t *testing.T) {
	const path = "../../../go.mod"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse(path, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(f.Require, func(r *modfile.Require) bool { return r.Mod.Path == "knative.dev/serving" })
	if i < 0 {
		t.Fatal("the root module does not require knative.dev/serving")
	}
	if got := f.Require[i].Mod.Version; got != KnativeServing {
		t.Errorf("the root module requires knative.dev/serving %s, the box installs %s", got, KnativeServing)
	}
}
