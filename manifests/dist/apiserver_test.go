package dist

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/apiservertest"
)

// The modules with the definitions of others' kinds. Istio and KServe have the versions of the box.
const (
	istio              = "istio.io/api@v1.31.1"
	kserve             = "github.com/kserve/kserve@v0.20.0"
	prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

var (
	cluster = flag.String("cluster", "", "kubeconfig of a cluster with Knative and KServe, whose API server to ask instead of the test's own; it gets the definitions of Libra, Istio and the Prometheus operator")
	results = flag.String("results", "", "JSON file to add the number of validated objects to")
)

// overlays are the trees whose kustomizations users apply.
var overlays = []string{"manifests", "dashboards"}

// This is one test, because starting an API server takes longer than all the rest.
func TestAPIServerAcceptsAllThatShips(t *testing.T) {
	others := []string{
		filepath.Join(root, "manifests/base/crds"),
		filepath.Join(module(t, istio), "kubernetes/customresourcedefinitions.gen.yaml"),
		filepath.Join(module(t, prometheusOperator), "example/prometheus-operator-crd"),
	}
	var config *rest.Config
	if *cluster != "" {
		config = clusterWith(t, others...)
	} else {
		config = apiservertest.Start(t, append(others,
			filepath.Join(apiservertest.Module(t, "knative.dev/serving"), "config/core/300-resources"),
			filepath.Join(module(t, kserve), "config/crd/minimal"))...)
	}
	config.QPS = -1
	kube, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	accepts := func(name string, data []byte) {
		ran++
		t.Run(name, func(t *testing.T) {
			objects := decode(t, data)
			for _, o := range objects {
				kind := o.GroupVersionKind()
				if _, err := kube.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version); err != nil && kind == mutatingAdmissionPolicy {
					t.Skipf("this API server is older than %s", kind)
				}
			}
			apiservertest.Accepts(t, kube, objects)
		})
	}
	found := map[string]bool{}
	for name, data := range kustomized(t) {
		found[name] = true
		accepts(name, data)
	}
	for _, want := range []string{"manifests/base", "manifests/components/istio-ambient", "manifests/components/redis-auth on manifests/base", "dashboards/operator"} {
		if !found[want] {
			t.Errorf("%s was not found", want)
		}
	}
	for _, f := range files {
		data, err := f.render(testRelease())
		if err != nil {
			t.Fatal(err)
		}
		accepts(f.name, data)
	}
	h := newHelm(t)
	for name, values := range map[string][]string{
		"chart": nil,
		"chart with all": {
			"predictor=plain", "scheduler.enabled=true", "monitoring.enabled=true", "namespaceOptIn.enabled=true",
			"registry=mirror.example/libra", "settings.mode=full", "resources.agent.limits.cpu=1",
		},
	} {
		accepts(name, h.template(t, values...))
	}
	if *cluster == "" {
		t.Run("release of the chart", func(t *testing.T) { h.installs(t, config, kube) })
	}
	if *results != "" {
		record(t, *results, map[string]any{"validated": ran, "validated_all": !t.Failed()})
	}
}

// clusterWith returns the cluster of the flag, after installing definitions of what it does not run.
func clusterWith(t *testing.T, definitions ...string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", *cluster)
	if err != nil {
		t.Fatal("-cluster: ", err)
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: definitions, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
	return config
}

// record adds figures to a JSON file, and keeps those that it has.
func record(t *testing.T, path string, figures map[string]any) {
	t.Helper()
	all := map[string]any{}
	if data, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(data, &all); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	maps.Copy(all, figures)
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

var mutatingAdmissionPolicy = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicy"}

// kustomized returns the objects of each kustomization. A component changes others, so it is rendered on each it is for.
func kustomized(t *testing.T) map[string][]byte {
	t.Helper()
	rendered := map[string][]byte{}
	for _, tree := range overlays {
		err := fs.WalkDir(os.DirFS(root), tree, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "kustomization.yaml" {
				return err
			}
			dir := filepath.ToSlash(filepath.Dir(path))
			data, err := os.ReadFile(filepath.Join(root, path))
			if err != nil {
				return err
			}
			var k types.Kustomization
			if err := yaml.Unmarshal(data, &k); err != nil {
				return err
			}
			if k.Kind != types.ComponentKind {
				rendered[dir] = build(t, filepath.Join(root, dir))
				return nil
			}
			for on, resources := range map[string][]string{
				"manifests/base":            {"manifests/base", "manifests/scheduler"},
				"manifests/predictor-plain": {"manifests/base/core", "manifests/predictor-plain", "manifests/scheduler"},
			} {
				rendered[dir+" on "+on] = build(t, overlay(t, types.Kustomization{Resources: resources, Components: []string{dir}}))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return rendered
}

// overlay makes a folder with a kustomization. Its paths are relative to the root of the repository.
func overlay(t *testing.T, k types.Kustomization) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	from, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(dir, from)
	if err != nil {
		t.Fatal(err)
	}
	for _, paths := range [][]string{k.Resources, k.Components} {
		for i := range paths {
			paths[i] = filepath.Join(up, paths[i])
		}
	}
	data, err := yaml.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func build(t *testing.T, dir string) []byte {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	data, err := objects.AsYaml()
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return data
}

// module downloads a module that go.mod does not have, and returns its folder.
func module(t *testing.T, of string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", of)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod download %s: %v\n%s", of, err, out)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		t.Fatal(err)
	}
	return downloaded.Dir
}
