package stack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/loadtest/box/layout"
)

type object = *unstructured.Unstructured

// manifests renders everything that Install applies: for each part, one file for each phase. The
// objects of a phase must exist before the next phase makes sense.
func (b *builder) manifests(ctx context.Context) error {
	// Install would take files that an older box rendered for this one's.
	dir := b.layout.Manifests()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	for name, render := range b.renderers() {
		objects, err := render(ctx)
		if err != nil {
			return err
		}
		for _, edit := range []func([]object) error{resolveImages, setRequests, askSoon} {
			if err := edit(objects); err != nil {
				return err
			}
		}
		files := map[string][]byte{}
		for _, o := range objects {
			data, err := Document(o)
			if err != nil {
				return err
			}
			files[phaseOf(o)] = append(files[phaseOf(o)], data...)
		}
		for _, phase := range phases {
			if err := os.WriteFile(manifestPath(b.layout, name, phase), files[phase], 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// manifestPath is the file of the objects of a part that are applied in a phase.
func manifestPath(l layout.Layout, part, phase string) string {
	return filepath.Join(l.Manifests(), part+"-"+phase)
}

// rendered returns the objects of parts that are applied in a phase.
func rendered(l layout.Layout, parts []string, phase string) ([]object, error) {
	var all []object
	for _, name := range parts {
		path := manifestPath(l, name, phase)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%w: build the stack first", err)
		}
		objects, err := ParseObjects(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

// Document returns an object as one document of a YAML file.
func Document(o object) ([]byte, error) {
	data, err := yaml.Marshal(o.Object)
	return append([]byte("---\n"), data...), err
}

var phases = []string{"1-definitions.yaml", "2-objects.yaml", "3-workloads.yaml", "4-webhooks.yaml"}

// phaseOf returns the phase in which an object is applied. Webhooks come last: they reject the objects
// that they match until their server answers.
func phaseOf(o object) string {
	switch o.GetKind() {
	case "Namespace", "CustomResourceDefinition":
		return phases[0]
	case "Deployment":
		return phases[2]
	case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
		return phases[3]
	}
	return phases[1]
}

// readObjects reads the objects of YAML files; each pattern must match at least one.
func readObjects(patterns ...string) ([]object, error) {
	var objects []object
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no manifest matches %s: did the module's folders change?", pattern)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			o, err := ParseObjects(data)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			objects = append(objects, o...)
		}
	}
	return objects, nil
}

// ParseObjects returns the objects in a YAML file.
func ParseObjects(data []byte) ([]object, error) {
	var objects []object
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		content := map[string]any{}
		err := decoder.Decode(&content)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(content) > 0 { // skip a document of comments only
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
	}
}

// find returns the object of that kind and name.
func find(objects []object, kind, name string) (object, error) {
	i := slices.IndexFunc(objects, func(o object) bool { return o.GetKind() == kind && o.GetName() == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no %s %s among the manifests: did the module's folders change?", kind, name)
	}
	return objects[i], nil
}

// setData sets keys of a ConfigMap.
func setData(objects []object, name string, data map[string]string) error {
	cm, err := find(objects, "ConfigMap", name)
	if err != nil {
		return err
	}
	for k, v := range data {
		if err := unstructured.SetNestedField(cm.Object, v, "data", k); err != nil {
			return err
		}
	}
	return nil
}

const koScheme = "ko://"

// koImages maps the Go packages that manifests name instead of images to their images.
var koImages = map[string]string{
	"knative.dev/serving/cmd/activator":          activatorImage,
	"knative.dev/serving/cmd/autoscaler":         autoscalerImage,
	"knative.dev/serving/cmd/controller":         controllerImage,
	"knative.dev/serving/cmd/webhook":            webhookImage,
	"knative.dev/serving/cmd/queue":              queueImage,
	"knative.dev/net-gateway-api/cmd/controller": ingressImage,
	"knative.dev/net-kourier/cmd/kourier":        kourierImage,
	"github.com/kserve/kserve/cmd/manager":       kserveImage,
}

// resolveImages replaces the Go packages that the manifests name by images.
func resolveImages(objects []object) error {
	for _, o := range objects {
		resolved, err := mapStrings(o.Object, func(s string) (string, error) {
			if !strings.Contains(s, koScheme) {
				return s, nil
			}
			if img, ok := koImages[strings.TrimPrefix(s, koScheme)]; ok {
				return img, nil
			}
			return "", fmt.Errorf("%s %s names %q, for which there is no image", o.GetKind(), o.GetName(), s)
		})
		if err != nil {
			return err
		}
		o.Object = resolved.(map[string]any)
	}
	return nil
}

// mapStrings applies f to each string in v.
func mapStrings(v any, f func(string) (string, error)) (any, error) {
	switch v := v.(type) {
	case string:
		return f(v)
	case []any:
		for i := range v {
			m, err := mapStrings(v[i], f)
			if err != nil {
				return nil, err
			}
			v[i] = m
		}
	case map[string]any:
		for k := range v {
			m, err := mapStrings(v[k], f)
			if err != nil {
				return nil, err
			}
			v[k] = m
		}
	}
	return v, nil
}

// cpuRequests are the CPU requests of the parts on a node of two cores, most of which is for
// functions: next to nothing, except on the path of a request. Requests are also weights, so they
// matter when the node is busy.
var cpuRequests = map[string]string{
	"activator":                  "100m",
	"autoscaler":                 "30m",
	"controller":                 "10m",
	"webhook":                    "10m",
	"net-gateway-api-controller": "10m",
	"net-kourier-controller":     "10m",
	kourierGateway:               gatewayCPURequest,
	"istiod":                     "10m",
	"kserve-controller-manager":  "10m",
}

const (
	gatewayCPURequest = "50m" // of each gateway
	queueCPURequest   = "10m" // of each pod of a function
)

func setRequests(objects []object) error {
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		cpu, ok := cpuRequests[o.GetName()]
		if !ok {
			return fmt.Errorf("deployment %s: cpuRequests has no CPU request for it", o.GetName())
		}
		if err := editContainer(o, func(c map[string]any) error {
			return unstructured.SetNestedField(c, cpu, "resources", "requests", "cpu")
		}); err != nil {
			return fmt.Errorf("deployment %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// askSoon makes the kubelet probe the readiness of each part every second, because somebody waits for
// the box. A part becomes unready after as long as upstream has it. A probe with a longer period would
// first run at a random moment of its period if the kubelet itself is younger than the period.
func askSoon(objects []object) error {
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		if err := editContainer(o, func(c map[string]any) error {
			probe, ok := c["readinessProbe"].(map[string]any)
			if !ok {
				return nil
			}
			var upstream corev1.Probe
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(probe, &upstream); err != nil {
				return err
			}
			// Kubernetes' defaults, if upstream sets none.
			period, failures := cmp.Or(upstream.PeriodSeconds, 10), cmp.Or(upstream.FailureThreshold, 3)
			probe["periodSeconds"], probe["failureThreshold"] = int64(1), int64(period*failures)
			return nil
		}); err != nil {
			return fmt.Errorf("deployment %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// editContainer edits the first container of a Deployment.
func editContainer(deployment object, edit func(map[string]any) error) error {
	path := []string{"spec", "template", "spec", "containers"}
	containers, ok, err := unstructured.NestedSlice(deployment.Object, path...)
	if err != nil {
		return err
	}
	if !ok || len(containers) == 0 {
		return fmt.Errorf("there is no %s", strings.Join(path, "."))
	}
	first, ok := containers[0].(map[string]any)
	if !ok {
		return fmt.Errorf("%s[0] is not an object", strings.Join(path, "."))
	}
	if err := edit(first); err != nil {
		return err
	}
	return unstructured.SetNestedSlice(deployment.Object, containers, path...)
}
