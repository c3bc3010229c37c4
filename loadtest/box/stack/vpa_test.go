package stack

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const vpaDir = "../../vpa"

func TestWithoutAdmission(t *testing.T) {
	objects, err := ParseObjects([]byte(`
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

// `box load --with vpa` makes what loadtest/vpa installs.
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

// Nobody installs a manifest that the kustomization leaves out. The object of
// one function is for users with functions.
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
