package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/stack"
)

// libra is what the machine gets of Libra: tars of images, and the objects of manifests/base
// that work without KServe, with the definition of the one Knative kind that they need.
type libra struct {
	images     []string
	references []byte // of the images by name, in JSON
	objects    []byte
}

// images are the images that the machine needs, by the names that manifests/base uses or that
// the program looks for.
var images = []string{"libra-agent", "libra-resizer", "redis", "libra-fn-hold"}

// nobody stands in for a node without images, and keeps none: their tars are in the cache.
type nobody struct{}

func (nobody) Images(context.Context) ([]string, error) { return nil, nil }
func (nobody) Import(context.Context, string) error     { return nil }

func loadLibra(ctx context.Context, l layout.Layout, repository, dir string, log stack.Logf) (libra, error) {
	file := filepath.Join(dir, "images.json")
	if err := stack.Load(ctx, l, repository, nobody{}, nil, file, log); err != nil {
		return libra{}, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return libra{}, err
	}
	var references map[string]string
	if err := json.Unmarshal(data, &references); err != nil {
		return libra{}, fmt.Errorf("%s: %w", file, err)
	}
	found := libra{references: data, images: []string{filepath.Join(l.Images(), "pause.tar")}}
	replace := map[string]string{}
	for _, name := range images {
		found.images = append(found.images, filepath.Join(l.Images(), name+".tar"))
		replace[name] = references[name]
	}
	kubectl := exec.CommandContext(ctx, l.Bin("kubelite"), "kubectl", "kustomize", filepath.Join(repository, "manifests", "base"))
	base, err := kubectl.Output()
	if err != nil {
		return libra{}, fmt.Errorf("kubectl kustomize manifests/base: %w", err)
	}
	definitions, err := os.ReadFile(filepath.Join(l.Manifests(), "knative-1-definitions.yaml"))
	if err != nil {
		return libra{}, err
	}
	// Revisions are the one Knative kind on the machine: they say what a pod is owed.
	revisions, err := objects(nil, definitions, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "CustomResourceDefinition" && o.GetName() == "revisions.serving.knative.dev"
	})
	if err != nil {
		return libra{}, err
	}
	found.objects, err = objects(replace, base, func(o *unstructured.Unstructured) bool { return o.GetKind() != "InferenceService" })
	found.objects = append(revisions, found.objects...)
	return found, err
}

// objects returns the objects of a file that keep accepts. It replaces the named images, in any
// version, by other references.
func objects(images map[string]string, file []byte, keep func(*unstructured.Unstructured) bool) ([]byte, error) {
	all, err := stack.ParseObjects(file)
	if err != nil {
		return nil, err
	}
	var kept []byte
	for _, o := range all {
		if !keep(o) {
			continue
		}
		data, err := stack.Document(o)
		if err != nil {
			return nil, err
		}
		for name, reference := range images {
			versions := regexp.MustCompile(`(?m)image: ` + regexp.QuoteMeta(name) + `(:\S+)?$`)
			data = versions.ReplaceAllLiteral(data, []byte("image: "+reference))
		}
		kept = append(kept, data...)
	}
	return kept, nil
}
