package stack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const vpaDir = "../../vpa"

func TestCheckExtras(t *testing.T) {
	for _, with := range [][]string{nil, {"vpa"}, {"vpa", "vpa"}} {
		if err := checkExtras(with); err != nil {
			t.Errorf("checkExtras(%q) = %v", with, err)
		}
	}
	err := checkExtras([]string{"vpa", "hpa"})
	if err == nil || !strings.Contains(err.Error(), `"hpa"`) || !strings.Contains(err.Error(), "vpa") {
		t.Errorf("checkExtras() = %v, want an error that names what is wrong and what there is", err)
	}
}

func TestWithoutAdmission(t *testing.T) {
	objects, err := parseObjects([]byte(`
kind: CustomResourceDefinition
metadata: {name: verticalpodautoscalers.autoscaling.k8s.io}
---
kind: ServiceAccount
metadata: {name: vpa-updater}
---
kind: ServiceAccount
metadata: {name: vpa-admission-controller}
---
kind: ClusterRole
metadata: {name: "system:vpa-admission-controller"}
`))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, o := range withoutAdmission(objects) {
		names = append(names, o.GetName())
	}
	want := []string{"verticalpodautoscalers.autoscaling.k8s.io", "vpa-updater"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("withoutAdmission() (-want +got):\n%s", diff)
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

// What loadtest/vpa installs is what `box load --with vpa` makes.
func TestVPAManifestsAndImages(t *testing.T) {
	objects, err := readObjects(filepath.Join(vpaDir, "*-deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, o := range objects {
		if err := editContainer(o, func(c map[string]any) error {
			image, _, err := unstructured.NestedString(c, "image")
			named = append(named, image)
			return err
		}); err != nil {
			t.Errorf("%s: %v", o.GetName(), err)
		}
	}
	var made []string
	for _, u := range extras["vpa"].upstreams {
		for _, b := range u.binaries {
			made = append(made, b.Name)
		}
	}
	slices.Sort(named)
	slices.Sort(made)
	if diff := cmp.Diff(made, named); diff != "" {
		t.Errorf("images (-made +named):\n%s", diff)
	}
}

// A manifest that the kustomization leaves out is one that nobody installs;
// the object of one function is for whoever has functions.
func TestVPAKustomization(t *testing.T) {
	files, err := os.ReadDir(vpaDir)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range files {
		if f.Name() != "kustomization.yaml" && f.Name() != "autoscaler.yaml" {
			want = append(want, f.Name())
		}
	}
	kustomization, err := readObjects(filepath.Join(vpaDir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := unstructured.NestedStringSlice(kustomization[0].Object, "resources")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("resources (-there +listed):\n%s", diff)
	}
}
