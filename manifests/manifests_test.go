// Package manifests tests what `kubectl apply -k` creates from this folder, and what
// `kubectl delete -k` deletes.
package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/kubectl/uninstall"
	"libra.dev/libra/pkg/settings"
)

// kustomization has the fields that ours use. An unknown field is an error, because it
// could add an object that these tests do not see.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Namespace       string   `json:"namespace"`
	Resources       []string `json:"resources"`
	Labels          []any    `json:"labels"`
	Patches         []patch  `json:"patches"`
}

// patch changes existing objects.
type patch struct {
	Path   string `json:"path"`
	Target struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"target"`
}

// object has the fields that identify an object.
type object struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	// whole is the object as its file has it.
	whole json.RawMessage
}

const kustomizationFile = "kustomization.yaml"

// clusterScoped are those of our kinds that have no namespace.
var clusterScoped = []string{
	"Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "CustomResourceDefinition",
}

// checkNamespace is the namespace of the Job that checks a cluster, even before Libra is there.
const checkNamespace = "libra-check"

// namespaces are Libra's.
var namespaces = []string{settings.Namespace, settings.AgentNamespace, uninstall.Job, checkNamespace, "libra-samples"}

// rights are those of our kinds that go into others' namespaces, for what the Jobs do there.
var rights = []string{"Role", "RoleBinding"}

// ours reports whether an object is Libra's alone: in one of Libra's namespaces, cluster-scoped
// or a right with Libra's name, or a definition in Libra's API group.
func (o object) ours() bool {
	if o.Kind == "CustomResourceDefinition" {
		return strings.HasSuffix(o.Metadata.Name, "."+v1alpha1.GroupVersion.Group)
	}
	if slices.Contains(clusterScoped, o.Kind) || slices.Contains(rights, o.Kind) {
		return strings.HasPrefix(o.Metadata.Name, "libra-")
	}
	return slices.Contains(namespaces, o.Metadata.Namespace)
}

// `kubectl delete -k` deletes all objects of a kustomization. So they must all be Libra's, which
// Knative's activator, for one, is not.
func TestKustomizationsHoldLibrasOwnObjects(t *testing.T) {
	used := map[string]bool{}
	for _, dir := range kustomizations(t) {
		objects, err := render(dir, used)
		if err != nil {
			t.Fatal(err)
		}
		k, err := readKustomization(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(objects)+len(k.Patches) == 0 {
			t.Errorf("%s has no object, and changes none", dir)
		}
		for _, o := range objects {
			if !o.ours() {
				t.Errorf("%s holds %s %s/%s, which is not Libra's alone: kubectl delete -k would delete it",
					dir, o.Kind, o.Metadata.Namespace, o.Metadata.Name)
			}
		}
	}
	// Nor may there be a stray file that somebody applies, and deletes, by itself.
	for _, path := range files(t, func(name string) bool { return name != kustomizationFile }) {
		if !used[path] {
			t.Errorf("%s is in no kustomization", path)
		}
	}
}

// Clusters have DNS domains of their own. Without one, a name is found by the pods' search lists.
func TestNothingNamesTheClustersDomain(t *testing.T) {
	for _, path := range files(t, func(string) bool { return true }) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if name := regexp.MustCompile(`[\w.-]+\.svc\.[\w.-]+`).Find(data); name != nil {
			t.Errorf("%s has %s, which ends in a cluster's domain", path, name)
		}
	}
}

func TestOursTellsLibrasObjectsFromKnatives(t *testing.T) {
	for text, want := range map[string]bool{
		`{kind: Deployment, metadata: {name: activator, namespace: knative-serving}}`:           false,
		`{kind: Deployment, metadata: {name: activator}}`:                                       false,
		`{kind: ConfigMap, metadata: {name: libra-config, namespace: knative-serving}}`:         false,
		`{kind: Namespace, metadata: {name: knative-serving}}`:                                  false,
		`{kind: Role, metadata: {name: knative-serving-activator, namespace: knative-serving}}`: false,
		`{kind: Role, metadata: {name: libra-activator-install, namespace: knative-serving}}`:   true,
		`{kind: ClusterRole, metadata: {name: knative-serving-activator}}`:                      false,
		`{kind: CustomResourceDefinition, metadata: {name: services.serving.knative.dev}}`:      false,
		`{kind: CustomResourceDefinition, metadata: {name: placementpolicies.libra.dev}}`:       true,
		`{kind: Deployment, metadata: {name: redis, namespace: libra-system}}`:                  true,
		`{kind: DaemonSet, metadata: {name: libra-agent, namespace: libra-node}}`:               true,
		`{kind: Namespace, metadata: {name: libra-system}}`:                                     true,
		`{kind: Namespace, metadata: {name: libra-node}}`:                                       true,
		`{kind: ClusterRole, metadata: {name: libra-activator}}`:                                true,
		`{kind: ValidatingAdmissionPolicy, metadata: {name: libra-resizer}}`:                    true,
	} {
		var o object
		if err := sigsyaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		if o.ours() != want {
			t.Errorf("%s is Libra's: %v", text, o.ours())
		}
	}
}

// Installing changes nothing. Nor does installing again: a setting in the manifest would
// overwrite the one that somebody made, or get in the way of the next apply.
func TestInstallingObserves(t *testing.T) {
	var configMap corev1.ConfigMap
	read(t, "base/settings/configmap.yaml", &configMap)
	if configMap.Name != settings.ConfigMap {
		t.Errorf("it is called %s", configMap.Name)
	}
	for key := range configMap.Data {
		if key != "_example" {
			t.Errorf("it sets %s", key)
		}
	}
	got, err := settings.Parse(configMap.Data)
	if err != nil || got != settings.Default {
		t.Errorf("it says %+v, %v, want %+v", got, err, settings.Default)
	}

	var example map[string]string
	if err := sigsyaml.UnmarshalStrict([]byte(configMap.Data["_example"]), &example); err != nil {
		t.Fatalf("its example: %v", err)
	}
	if got, err = settings.Parse(example); err != nil || got != settings.Default {
		t.Errorf("its example says %+v, %v, want the defaults %+v", got, err, settings.Default)
	}
	// The error about an unknown key names all keys.
	_, err = settings.Parse(map[string]string{"none": ""})
	for key := range example {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("the example has the key %s, and the settings do not", key)
		}
	}
	all := reflect.TypeFor[settings.Settings]().NumField() - 6 // the bounds, the reserve, the least loan, the safeguard, what it protects and the domain are a HarvestPolicy's alone
	if len(example) != all {
		t.Errorf("the example shows %d of %d settings", len(example), all)
	}
}

// KServe makes routes on the ingress gateway to every service that is not cluster-local. In
// Standard mode it looks at its own label, not at Knative's.
func TestPredictorIsClusterLocal(t *testing.T) {
	var service struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	read(t, "base/predictor/inferenceservice.yaml", &service)
	if mode := service.Metadata.Annotations["serving.kserve.io/deploymentMode"]; mode != "Standard" {
		t.Errorf("its deployment mode is %q, of which the label below says nothing", mode)
	}
	if visibility := service.Metadata.Labels["networking.kserve.io/visibility"]; visibility != "cluster-local" {
		t.Errorf("its visibility is %q", visibility)
	}
}

// render returns the objects that kustomize makes of a folder, with their namespaces, but without
// patches. It adds the files that it reads to used.
func render(dir string, used map[string]bool) ([]object, error) {
	path := filepath.Join(dir, kustomizationFile)
	k, err := readKustomization(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range k.Patches {
		used[filepath.Join(dir, p.Path)] = true
	}
	var objects []object
	for _, resource := range k.Resources {
		of := filepath.Join(dir, resource)
		info, err := os.Stat(of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		var found []object
		if info.IsDir() {
			found, err = render(of, used)
		} else {
			used[of] = true
			found, err = objectsOf(of)
		}
		if err != nil {
			return nil, err
		}
		objects = append(objects, found...)
	}
	for i := range objects {
		if k.Namespace != "" && !slices.Contains(clusterScoped, objects[i].Kind) {
			objects[i].Metadata.Namespace = k.Namespace
		}
	}
	return objects, nil
}

func readKustomization(dir string) (kustomization, error) {
	path := filepath.Join(dir, kustomizationFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return kustomization{}, err
	}
	var k kustomization
	if err := sigsyaml.UnmarshalStrict(data, &k); err != nil {
		return kustomization{}, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

func objectsOf(path string) ([]object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var objects []object
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), len(data)); ; {
		var o object
		err := documents.Decode(&o.whole)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err == nil {
			err = json.Unmarshal(o.whole, &o)
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		case o.Kind == "" || o.Metadata.Name == "":
			return nil, fmt.Errorf("%s: an object without a kind or a name", path)
		}
		objects = append(objects, o)
	}
}

// kustomizations returns the folders that can be applied.
func kustomizations(t *testing.T) []string {
	t.Helper()
	var dirs []string
	for _, path := range files(t, func(name string) bool { return name == kustomizationFile }) {
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

// files returns the YAML files whose names are wanted.
func files(t *testing.T, wanted func(name string) bool) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if path == "dist/chart" { // values, not objects
			return fs.SkipDir
		}
		if err == nil && strings.HasPrefix(filepath.Ext(path), ".y") && wanted(entry.Name()) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Fatal("there are no manifests")
	}
	return paths
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := sigsyaml.Unmarshal(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
