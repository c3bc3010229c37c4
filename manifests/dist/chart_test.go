package dist

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/apiservertest"
	"libra.dev/libra/pkg/boxcache"
	"libra.dev/libra/pkg/settings"
)

// helmModule and helmVersion are the Helm that the box is made with.
const (
	helmModule  = "helm.sh/helm/v4"
	helmVersion = "v4.2.0"
)

// helm runs Helm's command on a chart.
type helm struct {
	command []string
	chart   string
}

func newHelm(t *testing.T) helm {
	t.Helper()
	r := testRelease()
	data, err := r.chart()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), r.chartFile())
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return helm{command: helmCommand(t), chart: path}
}

// helmCommand returns the command that is Helm: the box's, or else Go with Helm's sources, which takes minutes.
func helmCommand(t *testing.T) []string {
	t.Helper()
	binary, err := boxcache.Binary("helm")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := buildinfo.ReadFile(binary); err == nil && info.Main.Path == helmModule && info.Main.Version == helmVersion {
		return []string{binary}
	}
	return []string{"go", "run", helmModule + "/cmd/helm@" + helmVersion}
}

// run runs Helm, outside of the module, where Go needs no entry in go.mod for it.
func (h helm) run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), h.command[0], append(h.command[1:], args...)...)
	home := t.TempDir()
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func (h helm) template(t *testing.T, values ...string) []byte {
	t.Helper()
	out, errs, err := h.run(t, h.templateArgs(values...)...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, errs)
	}
	return []byte(out)
}

func (h helm) templateArgs(values ...string) []string {
	args := []string{"template", "libra", h.chart}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return args
}

// byKey returns the objects by key, without Helm's annotations.
func byKey(objects []unstructured.Unstructured) map[string]unstructured.Unstructured {
	all := map[string]unstructured.Unstructured{}
	for _, o := range objects {
		annotations := o.GetAnnotations()
		maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, "helm.sh/") })
		if len(annotations) == 0 {
			annotations = nil
		}
		o.SetAnnotations(annotations)
		all[key(o)] = o
	}
	return all
}

func TestChartIsReproducible(t *testing.T) {
	first, err := testRelease().chart()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := testRelease().chart(); err != nil || !bytes.Equal(first, again) {
		t.Errorf("it differs from itself (%v)", err)
	}
}

func TestChartIsLinted(t *testing.T) {
	h := newHelm(t)
	if out, errs, err := h.run(t, "lint", "--strict", h.chart); err != nil {
		t.Errorf("helm lint: %v\n%s%s", err, out, errs)
	}
}

// The chart installs the same objects as the files.
func TestChartHoldsWhatTheFilesDo(t *testing.T) {
	r := testRelease()
	files := rendered(t, r)
	files["libra-uninstall.yaml"] = withoutArgument(t, files["libra-uninstall.yaml"])
	h := newHelm(t)
	for _, test := range []struct {
		values []string
		files  []string
	}{
		{nil, []string{"libra-predictor-kserve.yaml", "libra-activator.yaml"}},
		{[]string{"predictor=plain"}, []string{"libra-predictor-plain.yaml", "libra-activator.yaml"}},
		{[]string{"predictor=none", "scheduler.enabled=true"}, []string{"libra-scheduler.yaml", "libra-activator.yaml"}},
		{[]string{"predictor=none", "monitoring.enabled=true"}, []string{"libra-monitoring.yaml", "libra-activator.yaml"}},
		{[]string{"predictor=none", "namespaceOptIn.enabled=true"}, []string{"libra-namespace-opt-in.yaml", "libra-activator.yaml"}},
	} {
		var want []unstructured.Unstructured
		for _, name := range append(test.files, "libra.yaml", "libra-uninstall.yaml") {
			want = append(want, files[name]...)
		}
		if diff := cmp.Diff(byKey(want), byKey(decode(t, h.template(t, test.values...)))); diff != "" {
			t.Errorf("with %q the files (-) and the chart (+) differ:\n%s", test.values, diff)
		}
	}
}

// withoutArgument returns the objects of the removal, with a Job that leaves its own deletion to Helm.
func withoutArgument(t *testing.T, objects []unstructured.Unstructured) []unstructured.Unstructured {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == "Job" {
			if err := withoutWithJob(o.Object); err != nil {
				t.Fatal(err)
			}
		}
	}
	return objects
}

// Only Helm's removal has the rights to uninstall Libra.
func TestRightsOfTheRemovalAreAHook(t *testing.T) {
	removed := byKey(rendered(t, testRelease())[removal])
	weights := map[string]string{}
	for _, o := range decode(t, newHelm(t).template(t)) {
		if _, is := removed[key(o)]; !is {
			continue
		}
		annotations := o.GetAnnotations()
		if annotations["helm.sh/hook"] != "pre-delete" {
			t.Errorf("%s is installed", key(o))
		}
		weights[o.GetKind()] = annotations["helm.sh/hook-weight"]
	}
	if len(weights) < 4 || weights["Namespace"] >= weights["ServiceAccount"] || weights["ClusterRoleBinding"] >= weights["Job"] {
		t.Errorf("they are made in the order of %v: want the namespace, then the rights, then the Job", weights)
	}
}

func TestChartsValuesDoWhatTheySay(t *testing.T) {
	h := newHelm(t)
	defaults := byKey(decode(t, h.template(t)))
	changed := byKey(decode(t, h.template(t, "activator.install=false", "registry=mirror.example:5000/libra", "settings.mode=lend",
		"settings.placement=hash", "resources.redis.limits.memory=1Gi")))

	var gone []string
	for name := range defaults {
		if _, ok := changed[name]; !ok {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 || slices.ContainsFunc(gone, func(name string) bool { return !strings.HasSuffix(name, " "+activatorJob) }) {
		t.Errorf("without the activator's install %q are not there", gone)
	}
	r := testRelease()
	for name, o := range changed {
		for _, c := range containers(o.Object) {
			image, _ := c["image"].(string)
			path, digest, _ := strings.Cut(image, "@")
			of := strings.TrimPrefix(path, "mirror.example:5000/libra/")
			if _, want := r.Images.split(of); want == "" || digest != want {
				t.Errorf("%s runs %s, want an image of the mirror by the release's digest", name, image)
			}
		}
	}
	config := changed["ConfigMap "+settings.Namespace+" "+settings.ConfigMap]
	data, _, _ := unstructured.NestedStringMap(config.Object, "data")
	if data["mode"] != "lend" || data["placement"] != "hash" || data["_example"] == "" {
		t.Errorf("the settings are %q", slices.Sorted(maps.Keys(data)))
	}
	redis := containers(changed["Deployment.apps "+settings.Namespace+" redis"].Object)
	if got := fmt.Sprint(redis[0]["resources"]); got != "map[limits:map[memory:1Gi] requests:map[cpu:250m memory:32Mi]]" {
		t.Errorf("Redis has the resources %s", got)
	}
}

func TestChartRefusesBadValues(t *testing.T) {
	h := newHelm(t)
	for value, want := range map[string]string{
		"predicter=plain":                  "additional properties 'predicter' not allowed",
		"predictor=knative":                "/predictor",
		"activator.install=maybe":          "/activator/install",
		"monitoring.on=true":               "/monitoring",
		"registry=https://mirror.example/": "/registry",
		"settings.mode=on":                 "/settings/mode",
		"settings.modus=full":              "/settings",
		"resources.agent.limits.memory=a":  "/resources/agent/limits/memory",
		"resources.agents.limits.memory=1": "/resources",
	} {
		out, errs, err := h.run(t, h.templateArgs(value)...)
		if err == nil {
			t.Errorf("%s is accepted", value)
		}
		if !strings.Contains(out+errs, want) {
			t.Errorf("%s: %s, want %q in it", value, out+errs, want)
		}
	}
}

// The schema has all settings and all parts, and no others.
func TestSchemaKnowsAllSettingsAndParts(t *testing.T) {
	var schema struct {
		Properties map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"properties"`
	}
	content := chartContent(t)
	if err := json.Unmarshal(content["libra/values.schema.json"], &schema); err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(content["libra/values.yaml"], &values); err != nil {
		t.Fatal(err)
	}
	parts, _ := values["resources"].(map[string]any)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(parts)), slices.Sorted(maps.Keys(schema.Properties["resources"].Properties))); diff != "" {
		t.Errorf("the parts in the values (-) and in the schema (+) differ:\n%s", diff)
	}
	_, err := settings.Parse(map[string]string{"none": ""})
	if err == nil {
		t.Fatal("a setting that there is not is accepted")
	}
	for name := range schema.Properties["settings"].Properties {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the schema has the setting %q, and there is none: %v", name, err)
		}
	}
	if _, names, _ := strings.Cut(err.Error(), ", want "); strings.Count(names, ",")+2 != len(schema.Properties["settings"].Properties) {
		t.Errorf("the schema has %d settings, want %s", len(schema.Properties["settings"].Properties), names)
	}
}

// chartContent returns the files of the chart.
func chartContent(t *testing.T) map[string][]byte {
	t.Helper()
	data, err := testRelease().chart()
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	for r := tar.NewReader(unpacked); ; {
		h, err := r.Next()
		if err == io.EOF {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// installs has Helm install and upgrade all of the chart but its Jobs, which nothing runs here, and checks what Helm keeps.
func (h helm) installs(t *testing.T, config *rest.Config, kube client.Client) {
	kubeconfig := apiservertest.Kubeconfig(t, config)
	all := []string{"--set", "scheduler.enabled=true,monitoring.enabled=true,namespaceOptIn.enabled=true"}
	for _, command := range []string{"install", "upgrade"} {
		args := append([]string{command, "libra", h.chart, "--take-ownership", "--no-hooks", "--kubeconfig", kubeconfig}, all...)
		if out, errs, err := h.run(t, args...); err != nil {
			t.Fatalf("helm %s: %v\n%s%s", command, err, out, errs)
		}
	}
	var secret corev1.Secret
	if err := kube.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "sh.helm.release.v1.libra.v2"}, &secret); err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, data := range secret.Data {
		size += len(data)
	}
	t.Logf("a release is %d KiB", size>>10)
	if size > corev1.MaxSecretSize/2 {
		t.Errorf("a release is %d bytes, more than half of the %d that a Secret may have", size, corev1.MaxSecretSize)
	}
}
