package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
)

func TestKustomizeImageOf(t *testing.T) {
	for reference, want := range map[string]kustomizeImage{
		"dev.local/libra-agent:0123abcd":       {Name: "x", NewName: "dev.local/libra-agent", NewTag: "0123abcd"},
		"registry.test:5000/libra/agent":       {Name: "x", NewName: "registry.test:5000/libra/agent", NewTag: "latest"},
		"registry.test:5000/libra/agent:v1":    {Name: "x", NewName: "registry.test:5000/libra/agent", NewTag: "v1"},
		"registry.test/libra/agent@sha256:abc": {Name: "x", NewName: "registry.test/libra/agent", Digest: "sha256:abc"},
	} {
		if diff := cmp.Diff(want, kustomizeImageOf("x", reference)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reference, diff)
		}
	}
}

func TestKustomizeRefersToTheManifestsByARelativePath(t *testing.T) {
	root := t.TempDir()
	base := filepath.Join(root, "manifests", "base")
	if err := os.MkdirAll(base, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "out", "demo", "kustomize", "libra")
	if err := (images{"b": "b:1", "a": "a:1"}).kustomize(dir, base, "libra-demo"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var got kustomization
	if err := yaml.UnmarshalStrict(data, &got); err != nil {
		t.Fatal(err)
	}
	want := kustomization{
		APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization", Namespace: "libra-demo",
		Resources: []string{"../../../../manifests/base"},
		Images:    []kustomizeImage{{Name: "a", NewName: "a", NewTag: "1"}, {Name: "b", NewName: "b", NewTag: "1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	err = images{}.kustomize(dir, filepath.Join(root, "nowhere"), "")
	if err == nil || !strings.Contains(err.Error(), "root of the repository") {
		t.Errorf("no manifests: got %v", err)
	}
}

func TestReadImagesNamesWhatIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.json")
	if err := os.WriteFile(path, []byte(`{"libra-activator":"dev.local/libra-activator:1"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := readImages(path, four)
	if err == nil || !strings.Contains(err.Error(), "libra-fn-uploader") || strings.Contains(err.Error(), "libra-activator") {
		t.Errorf("got %v, want an error that names what is missing only", err)
	}
}

// An install observes; tests are about Libra in action.
func TestModeAndSourceAreSetAsTheDocsSay(t *testing.T) {
	k, log := fakeKubectl(t, "")
	d := demo{kubectl: k}
	for _, err := range []error{
		d.setMode(t.Context(), api.ModeFull),
		d.setSource(t.Context(), api.SourceOwners, "functions"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := `-n libra-system patch configmap config-libra --type=merge --patch={"data":{"mode":"full"}}
label --overwrite namespace functions libra.dev/source=owners
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
