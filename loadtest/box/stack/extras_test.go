package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckExtras(t *testing.T) {
	for _, with := range [][]string{nil, {"vpa"}, {"vpa", "vpa"}, {"scheduler", "vpa"}} {
		if err := checkExtras(with); err != nil {
			t.Errorf("checkExtras(%q) = %v", with, err)
		}
	}
	err := checkExtras([]string{"vpa", "hpa"})
	if err == nil || !strings.Contains(err.Error(), `"hpa"`) || !strings.Contains(err.Error(), "vpa") {
		t.Errorf("checkExtras() = %v, want an error that names what is wrong and what there is", err)
	}
}

func TestWriteObjects(t *testing.T) {
	want := []object{
		{Object: map[string]any{"kind": "ServiceAccount", "metadata": map[string]any{"name": "vpa-updater"}}},
		{Object: map[string]any{"kind": "ClusterRole", "metadata": map[string]any{"name": "system:vpa-actor"}}},
	}
	path := filepath.Join(t.TempDir(), "out", VPAObjects)
	if err := writeObjects(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := readObjects(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was written reads (-want +got):\n%s", diff)
	}
}

// Manifests name the image of each program of the repository.
func TestLocalExtrasAreInTheRepository(t *testing.T) {
	const root = "../../.."
	for name, e := range extras {
		for _, b := range e.local {
			if _, err := os.Stat(filepath.Join(root, e.dir, b.Package)); err != nil {
				t.Errorf("--with %s: %v", name, err)
			}
			objects, err := readObjects(filepath.Join(root, "manifests", name, "deployment.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if err := editContainer(objects[0], func(c map[string]any) error {
				if c["image"] != b.Name {
					t.Errorf("--with %s makes the image %s, and its Deployment has %v", name, b.Name, c["image"])
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
}
