package dist

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/filters/imagetag"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"libra.dev/libra/pkg/settings"
)

// resizer is the name of the part, and of the objects that give it its rights.
const resizer = "libra-resizer"

// file is a file that a user applies.
type file struct {
	name string
	// dir is the kustomization whose objects it has.
	dir   string
	about string
}

// files are in the order in which they are applied.
var files = []file{
	{"libra.yaml", "manifests/base/core", "All of Libra except its predictor and its activator."},
	{"libra-predictor-kserve.yaml", "manifests/base/predictor", "Libra's predictor, served by KServe. It needs libra.yaml."},
	{"libra-predictor-plain.yaml", "manifests/predictor-plain", "Libra's predictor, for clusters without KServe. It needs libra.yaml."},
	{"libra-activator.yaml", "manifests/activator", "A Job that puts Libra's activator in the place of Knative's, and its rights. It needs libra.yaml."},
	{"libra-uninstall.yaml", "manifests/uninstall", "A Job that removes Libra, and then itself."},
	{"libra-check.yaml", "manifests/check", "A Job that checks a cluster, before or after Libra is installed."},
	{"libra-namespace-opt-in.yaml", "manifests/components/namespace-opt-in", "Opts the functions of labelled namespaces in. It needs libra.yaml."},
	{"libra-scheduler.yaml", "manifests/scheduler", "Libra's scheduler, for functions that ask for it. It needs libra.yaml."},
	{"libra-monitoring.yaml", "dashboards/operator", "Dashboards for Grafana, and rules and monitors for the Prometheus Operator. It needs libra.yaml."},
	{"libra-samples.yaml", "manifests/samples", "Two functions, and a Job that sends requests to them for half an hour. It needs libra.yaml and libra-activator.yaml."},
}

// render returns the content of the file.
func (f file) render(r Release) ([]byte, error) {
	objects, err := f.objects(r)
	if err != nil {
		return nil, err
	}
	data, err := objects.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Libra %s. %s\n", r.Version, f.about)
	out.Write(data)
	return out.Bytes(), nil
}

// objects returns the objects of the file, with the release's images.
func (f file) objects(r Release) (resmap.ResMap, error) {
	options := krusty.MakeDefaultOptions()
	// As kubectl does: objects that others need come first.
	options.Reorder = krusty.ReorderOptionLegacy
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), filepath.Join(r.Root, f.dir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	if objects, err = ordered(objects); err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	for _, name := range r.Images.names() {
		repository, digest := r.Images.split(name)
		// In containers wherever they are, even in an InferenceService.
		pin := imagetag.LegacyFilter{ImageTag: types.Image{Name: name, NewName: repository, Digest: digest}}
		if err := objects.ApplyFilter(pin); err != nil {
			return nil, fmt.Errorf("%s: image %s: %w", f.name, name, err)
		}
	}
	released := map[string]bool{}
	for _, reference := range r.Images {
		released[reference] = true
	}
	for _, o := range objects.Resources() {
		used, err := imagesOf(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %s %s: %w", f.name, o.GetKind(), o.GetName(), err)
		}
		for _, image := range used {
			if !released[image] {
				return nil, fmt.Errorf("%s: %s %s runs the image %q, which is not one of the release's: %q", f.name, o.GetKind(), o.GetName(), image, r.Images.names())
			}
		}
	}
	return objects, nil
}

// ordered sorts the objects into the order in which `kubectl delete -f` deletes them, too. The settings come as early as
// they can: without them, every function is observed. The resizer's rights come last: it then puts limits back.
func ordered(objects resmap.ResMap) (resmap.ResMap, error) {
	all := objects.Resources()
	slices.SortStableFunc(all, func(a, b *resource.Resource) int { return cmp.Compare(rank(a), rank(b)) })
	sorted := resmap.New()
	for _, o := range all {
		if err := sorted.Append(o); err != nil {
			return nil, err
		}
	}
	return sorted, nil
}

func rank(o *resource.Resource) int {
	switch kind := o.GetKind(); {
	case kind == "Namespace":
		return 0
	case kind == "ConfigMap" && o.GetName() == settings.ConfigMap:
		return 1
	case o.GetName() == resizer && (kind == "ServiceAccount" || o.GetGvk().Group == rbacv1.GroupName):
		return 3
	}
	return 2
}

// imagesOf returns the images of all containers of an object of any kind.
func imagesOf(o *resource.Resource) ([]string, error) {
	if o.GetKind() == "CustomResourceDefinition" {
		return nil, nil
	}
	fields, err := o.Map()
	if err != nil {
		return nil, err
	}
	var images []string
	for _, c := range containers(fields) {
		image, _ := c["image"].(string)
		images = append(images, image)
	}
	return images, nil
}

// containers returns all containers in a value, including init containers.
func containers(value any) (all []map[string]any) {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			all = append(all, containers(field)...)
			if key != "containers" && key != "initContainers" {
				continue
			}
			list, _ := field.([]any)
			for _, item := range list {
				if c, ok := item.(map[string]any); ok {
					all = append(all, c)
				}
			}
		}
	case []any:
		for _, item := range value {
			all = append(all, containers(item)...)
		}
	}
	return all
}
