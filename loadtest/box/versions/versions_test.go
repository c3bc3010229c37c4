package versions

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// The go.mod files of this repository's modules.
const (
	libra     = "../../../go.mod"
	box       = "../go.mod"
	dns       = "../dns/go.mod"
	scheduler = "../../../activator-plugin/placement/scheduler/go.mod"
)

// requirements returns the versions that a go.mod requires, by module. It leaves out the libraries that a module
// replaces, because such a version says nothing.
func requirements(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse(path, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, r := range f.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	for _, r := range f.Replace {
		delete(versions, r.Old.Path)
	}
	return versions
}

// The activator with Libra replaces the stock one of the same release.
func TestKnativeServingIsTheRepositorys(t *testing.T) {
	if got := requirements(t, libra)["knative.dev/serving"]; got != KnativeServing {
		t.Errorf("the root module requires knative.dev/serving %q, the box installs %s", got, KnativeServing)
	}
}

// Otherwise Kubernetes is compiled twice, or its client once more. CoreDNS asks for some later versions than Libra.
func TestModulesWithTheSameKubernetesHaveTheSameDependencies(t *testing.T) {
	for _, pair := range []struct{ of, as string }{{box, scheduler}, {scheduler, box}, {dns, libra}} {
		of, as := requirements(t, pair.of), requirements(t, pair.as)
		for path, want := range as {
			if got, ok := of[path]; ok && semver.Compare(got, want) < 0 {
				t.Errorf("%s requires %s %s, and %s requires %s: in the former's folder, run go get %[2]s@%[5]s && go mod tidy",
					filepath.Clean(pair.of), path, got, pair.as, want)
			}
		}
	}
}
