package dist

import (
	"embed"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/kubectl/uninstall"
	"libra.dev/libra/pkg/settings"
)

// chartFiles has the chart's files that are not made from objects.
//
//go:embed chart
var chartFiles embed.FS

const (
	chartName = "libra"

	activatorJob = "libra-activator-install"
	removal      = "libra-uninstall.yaml"
	// withJob makes the removal's Job delete itself.
	withJob = "--with-job"

	// Placeholders in an object for what comes from the values, until its YAML is written.
	settingsMark  = "LIBRA-SETTINGS"
	resourcesMark = "LIBRA-RESOURCES-"
)

// whens maps the chart's files to the conditions on which they are installed, "" for none.
var whens = map[string]string{
	"libra.yaml":                  "",
	"libra-predictor-kserve.yaml": `eq .Values.predictor "kserve"`,
	"libra-predictor-plain.yaml":  `eq .Values.predictor "plain"`,
	"libra-activator.yaml":        "",
	removal:                       "",
	"libra-scheduler.yaml":        ".Values.scheduler.enabled",
	"libra-monitoring.yaml":       ".Values.monitoring.enabled",
	"libra-namespace-opt-in.yaml": ".Values.namespaceOptIn.enabled",
}

// sized maps objects with containers to their keys in the value resources.
var sized = map[string]string{
	"DaemonSet libra-agent":      "agent",
	"Deployment libra-predictor": "predictor",
	"Deployment libra-resizer":   "resizer",
	"Deployment libra-scheduler": "scheduler",
	"Deployment redis":           "redis",
	"InferenceService libra":     "predictor",
}

func (r Release) chartFile() string { return fmt.Sprintf("%s-%s.tgz", chartName, r.Version) }

// chart returns Helm's archive of the objects of files.
func (r Release) chart() ([]byte, error) {
	resources := map[string]any{}
	var templates []entry
	for _, f := range files {
		when, ok := whens[f.name]
		if !ok {
			continue
		}
		template, err := r.template(f, when, resources)
		if err != nil {
			return nil, err
		}
		templates = append(templates, entry{chartName + "/templates/" + f.name, 0o644, template})
	}
	meta, err := yaml.Marshal(map[string]any{
		"apiVersion":  "v2",
		"name":        chartName,
		"type":        "application",
		"description": "CPU and memory for each request to a Knative function, by what the request needs",
		"version":     r.Version,
		"appVersion":  r.Version,
		// For the in-place resize of pods. With the -0, providers' versions count, too.
		"kubeVersion": ">=1.35.0-0",
		"home":        "https://libra.dev/libra",
	})
	if err != nil {
		return nil, err
	}
	sizes, err := yaml.Marshal(map[string]any{"resources": resources})
	if err != nil {
		return nil, err
	}
	text := map[string][]byte{}
	for _, name := range []string{"values.yaml", "values.schema.json", "NOTES.txt"} {
		if text[name], err = chartFiles.ReadFile("chart/" + name); err != nil {
			return nil, err
		}
	}
	return archive(append([]entry{
		{chartName + "/Chart.yaml", 0o644, meta},
		{chartName + "/values.yaml", 0o644, append(text["values.yaml"], sizes...)},
		{chartName + "/values.schema.json", 0o644, text["values.schema.json"]},
		{chartName + "/templates/NOTES.txt", 0o644, text["NOTES.txt"]},
		{chartName + "/templates/_images.tpl", 0o644, fmt.Appendf(nil, `{{ define "libra.activator" }}%s{{ end }}`+"\n", r.imageTemplate("libra-activator"))},
	}, templates...))
}

// template returns the template of a file, and adds what its containers may use to resources.
func (r Release) template(f file, when string, resources map[string]any) ([]byte, error) {
	objects, err := f.objects(r)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n", f.about)
	for _, o := range objects.Resources() {
		text, err := r.objectTemplate(o, helmAnnotations(f, o), resources)
		if err != nil {
			return nil, fmt.Errorf("%s in the chart: %s %s: %w", f.name, o.GetKind(), o.GetName(), err)
		}
		condition := when
		if o.GetName() == activatorJob {
			condition = ".Values.activator.install"
		}
		if condition != "" {
			text = "{{ if " + condition + " }}" + text + "{{ end }}"
		}
		out.WriteString("---\n" + text)
	}
	return []byte(out.String()), nil
}

func (r Release) objectTemplate(o *resource.Resource, annotations map[string]string, resources map[string]any) (string, error) {
	data, err := o.AsYAML()
	if err != nil {
		return "", err
	}
	// Some texts have a line more when they are written than in memory.
	var fields map[string]any
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return "", err
	}
	name := o.GetKind() + " " + o.GetName()
	for key, value := range annotations {
		if err := unstructured.SetNestedField(fields, value, "metadata", "annotations", key); err != nil {
			return "", err
		}
	}
	if name == "Job "+uninstall.Job {
		if err := withoutWithJob(fields); err != nil {
			return "", err
		}
	}
	if name == "ConfigMap "+settings.ConfigMap {
		if err := unstructured.SetNestedField(fields, "", "data", settingsMark); err != nil {
			return "", err
		}
	}
	part, isSized := sized[name]
	if isSized {
		if err := markResources(fields, part, resources); err != nil {
			return "", err
		}
	}
	if data, err = yaml.Marshal(fields); err != nil {
		return "", err
	}
	// Helm must leave Grafana's and Prometheus's own templates alone.
	text := strings.ReplaceAll(string(data), "{{", `{{ "{{" }}`)
	text = strings.Replace(text, "\n  "+settingsMark+`: ""`, "{{ range $key, $value := .Values.settings }}\n  {{ $key }}: {{ quote $value }}{{ end }}", 1)
	if isSized {
		text = strings.Replace(text, resourcesMark+part, "{{ toJson .Values.resources."+part+" }}", 1)
	}
	for _, image := range r.Images.names() {
		text = strings.ReplaceAll(text, r.Images[image], r.imageTemplate(image))
	}
	return text, nil
}

// imageTemplate returns the template of an image's reference. A mirror has the image by the same digest.
func (r Release) imageTemplate(name string) string {
	repository, digest := r.Images.split(name)
	return "{{ with .Values.registry }}{{ . }}/" + name + "{{ else }}" + repository + "{{ end }}@" + digest
}

// helmAnnotations returns the annotations that tell Helm when to create an object, and when not to delete it.
func helmAnnotations(f file, o *resource.Resource) map[string]string {
	switch {
	case f.name == removal:
		return removalAnnotations(o)
	case o.GetKind() == "CustomResourceDefinition":
		// The objects that users wrote would go with it.
		return map[string]string{"helm.sh/resource-policy": "keep"}
	case o.GetKind() == "Job" && o.GetName() == activatorJob:
		// A Job cannot be changed, and this one has to come last.
		return map[string]string{
			"helm.sh/hook":               "post-install,post-upgrade,post-rollback",
			"helm.sh/hook-delete-policy": "before-hook-creation",
		}
	}
	return nil
}

// removalAnnotations make the removal's Job and its rights exist only while Helm uninstalls Libra. The Job runs first, because
// it needs all that Helm then deletes to put things back. Helm prints its log, which says
// what is left. If it fails, Helm still deletes the Job's
// namespace and rights: they have been created, which Helm counts as success.
func removalAnnotations(o *resource.Resource) map[string]string {
	weight := "1" // what the Job needs
	switch o.GetKind() {
	case "Namespace":
		weight = "0"
	case "Job":
		weight = "2"
	}
	return map[string]string{
		"helm.sh/hook":                   "pre-delete",
		"helm.sh/hook-weight":            weight,
		"helm.sh/hook-delete-policy":     "before-hook-creation,hook-succeeded",
		"helm.sh/hook-output-log-policy": "hook-succeeded,hook-failed",
	}
}

// withoutWithJob keeps the removal's Job from deleting itself: Helm waits for its end, and deletes it.
func withoutWithJob(job map[string]any) error {
	for _, c := range containers(job) {
		args, _ := c["args"].([]any)
		if i := slices.Index(args, any(withJob)); i >= 0 {
			c["args"] = slices.Delete(args, i, i+1)
			return nil
		}
	}
	return fmt.Errorf("no container has the argument %s", withJob)
}

// markResources replaces the resources of a part's container with the part's mark, and adds them to those of all parts.
func markResources(fields map[string]any, part string, all map[string]any) error {
	found := containers(fields)
	if len(found) != 1 {
		return fmt.Errorf("it has %d containers, want one for resources.%s", len(found), part)
	}
	resources := found[0]["resources"]
	if of, ok := all[part]; ok && !reflect.DeepEqual(of, resources) {
		return fmt.Errorf("its resources %v differ from %v, but resources.%s are for both", resources, of, part)
	}
	all[part], found[0]["resources"] = resources, resourcesMark+part
	return nil
}
