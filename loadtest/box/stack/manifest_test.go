package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

func parse(t *testing.T, manifest string) []object {
	t.Helper()
	objects, err := ParseObjects([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestResolveImages(t *testing.T) {
	objects := parse(t, `# a comment only
---
kind: ConfigMap
metadata: {name: c}
data: {queue-sidecar-image: ko://knative.dev/serving/cmd/queue, other: "1"}
---
kind: Deployment
metadata: {name: d}
spec: {template: {spec: {containers: [{name: a, image: ko://knative.dev/serving/cmd/activator}, {name: b, image: example.com/b:1}]}}}
`)
	if err := resolveImages(objects); err != nil {
		t.Fatal(err)
	}
	want := parse(t, `kind: ConfigMap
metadata: {name: c}
data: {queue-sidecar-image: dev.local/knative-queue:v0.50.0, other: "1"}
---
kind: Deployment
metadata: {name: d}
spec: {template: {spec: {containers: [{name: a, image: dev.local/knative-activator:v0.50.0}, {name: b, image: example.com/b:1}]}}}
`)
	if diff := cmp.Diff(want, objects); diff != "" {
		t.Errorf("resolveImages() (-want +got):\n%s", diff)
	}
}

func TestResolveImagesUnknown(t *testing.T) {
	err := resolveImages(parse(t, "kind: Deployment\nmetadata: {name: d}\nspec: {image: ko://knative.dev/serving/cmd/new}\n"))
	if err == nil || !strings.Contains(err.Error(), "Deployment d") || !strings.Contains(err.Error(), "cmd/new") {
		t.Errorf("resolveImages() = %v, want an error that names the object and the package", err)
	}
}

func TestInNamespace(t *testing.T) {
	objects := parse(t, `kind: ClusterRoleBinding
metadata: {name: b}
subjects: [{kind: ServiceAccount, name: s}, {kind: Group, name: g}]
---
kind: ServiceAccount
metadata: {name: s}
`)
	inNamespace(objects, "kserve")
	want := parse(t, `kind: ClusterRoleBinding
metadata: {name: b}
subjects: [{kind: ServiceAccount, name: s, namespace: kserve}, {kind: Group, name: g}]
---
kind: ServiceAccount
metadata: {name: s, namespace: kserve}
`)
	if diff := cmp.Diff(want, objects); diff != "" {
		t.Errorf("inNamespace() (-want +got):\n%s", diff)
	}
}

// Knative's and KServe's modules must have what the renderers expect.
func TestUpstreamManifests(t *testing.T) {
	if testing.Short() {
		t.Skip("reads modules of the Go module proxy")
	}
	ctx := context.Background()
	knativeObjects, err := knative(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ingressObjects, err := gatewayAPI(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kserveObjects, err := kserve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	objects := slices.Concat(knativeObjects, ingressObjects, kserveObjects)
	if err := resolveImages(objects); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		data, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, left := range []string{koScheme, "$(webhookServiceName)", "$(kserveNamespace)"} {
			if strings.Contains(string(data), left) {
				t.Errorf("%s %s still has %s", o.GetKind(), o.GetName(), left)
			}
		}
		if o.GetName() == "" {
			t.Errorf("an object without a name: %s", data)
		}
	}
}

// Libra patches the stock activator, which must differ from upstream's only in
// its image, its requests, and how often its readiness is probed.
func TestActivatorIsUpstreams(t *testing.T) {
	if testing.Short() {
		t.Skip("reads modules of the Go module proxy")
	}
	ctx := context.Background()
	rendered, err := knative(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := resolveImages(rendered); err != nil {
		t.Fatal(err)
	}
	if err := setRequests(rendered); err != nil {
		t.Fatal(err)
	}
	if err := askSoon(rendered); err != nil {
		t.Fatal(err)
	}
	serving, err := build.Download(ctx, "knative.dev/serving", versions.KnativeServing)
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := readObjects(filepath.Join(serving.Dir, "config/core/deployments/activator.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployments []object
	for _, objects := range [][]object{upstream, rendered} {
		d, err := find(objects, "Deployment", "activator")
		if err != nil {
			t.Fatal(err)
		}
		if err := editContainer(d, func(c map[string]any) error {
			c["image"] = ""
			probe := c["readinessProbe"].(map[string]any)
			delete(probe, "periodSeconds")
			delete(probe, "failureThreshold")
			return unstructured.SetNestedField(c, "", "resources", "requests", "cpu")
		}); err != nil {
			t.Fatal(err)
		}
		deployments = append(deployments, d)
	}
	if diff := cmp.Diff(deployments[0], deployments[1]); diff != "" {
		t.Errorf("activator (-upstream +rendered):\n%s", diff)
	}
}

func TestSetRequests(t *testing.T) {
	const deployment = "kind: Deployment\nmetadata: {name: %s}\nspec: {template: {spec: {containers: [{name: a, resources: {requests: {memory: 1Mi}, limits: {cpu: \"1\"}}}, {name: b}]}}}\n"
	objects := parse(t, fmt.Sprintf(deployment, "activator")+"---\nkind: Service\nmetadata: {name: s}\n")
	if err := setRequests(objects); err != nil {
		t.Fatal(err)
	}
	want := parse(t, `kind: Deployment
metadata: {name: activator}
spec: {template: {spec: {containers: [{name: a, resources: {requests: {cpu: 100m, memory: 1Mi}, limits: {cpu: "1"}}}, {name: b}]}}}
---
kind: Service
metadata: {name: s}
`)
	if diff := cmp.Diff(want, objects); diff != "" {
		t.Errorf("setRequests() (-want +got):\n%s", diff)
	}
	if err := setRequests(parse(t, fmt.Sprintf(deployment, "new"))); err == nil || !strings.Contains(err.Error(), "deployment new") {
		t.Errorf("setRequests() = %v, want an error that names the deployment", err)
	}
}

// documents returns the objects as they are written to files.
func documents(t *testing.T, objects []object) (all []string) {
	t.Helper()
	for _, o := range objects {
		data, err := Document(o)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(data))
	}
	return all
}

func TestAskSoon(t *testing.T) {
	objects := parse(t, `kind: Deployment
metadata: {name: set}
spec: {template: {spec: {containers: [{name: a, readinessProbe: {periodSeconds: 5, failureThreshold: 4, httpGet: {port: 80}}}]}}}
---
kind: Deployment
metadata: {name: defaults}
spec: {template: {spec: {containers: [{name: a, readinessProbe: {httpGet: {port: 80}}}]}}}
---
kind: Deployment
metadata: {name: none}
spec: {template: {spec: {containers: [{name: a}]}}}
`)
	if err := askSoon(objects); err != nil {
		t.Fatal(err)
	}
	want := parse(t, `kind: Deployment
metadata: {name: set}
spec: {template: {spec: {containers: [{name: a, readinessProbe: {periodSeconds: 1, failureThreshold: 20, httpGet: {port: 80}}}]}}}
---
kind: Deployment
metadata: {name: defaults}
spec: {template: {spec: {containers: [{name: a, readinessProbe: {periodSeconds: 1, failureThreshold: 30, httpGet: {port: 80}}}]}}}
---
kind: Deployment
metadata: {name: none}
spec: {template: {spec: {containers: [{name: a}]}}}
`)
	if diff := cmp.Diff(documents(t, want), documents(t, objects)); diff != "" {
		t.Errorf("askSoon() (-want +got):\n%s", diff)
	}
}

func TestSourcesOfSuite(t *testing.T) {
	const targets = `http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm main
http://mirror.example/debian/ bookworm contrib
http://mirror.example/debian/ bookworm-updates main
http://mirror.example/debian-security/ bookworm-security main
http://tools.example/apt stable main
http://tools.example/apt bookworm-tools main
malformed
`
	for _, suite := range []string{"bookworm", "trixie"} {
		want := []string{
			"deb http://mirror.example/debian/ " + suite + " main",
			"deb http://mirror.example/debian/ " + suite + "-updates main",
			"deb http://mirror.example/debian-security/ " + suite + "-security main",
		}
		if diff := cmp.Diff(want, sourcesOfSuite(targets, "bookworm", suite)); diff != "" {
			t.Errorf("sourcesOfSuite() for %s (-want +got):\n%s", suite, diff)
		}
	}
}

func TestPostInstall(t *testing.T) {
	dir := t.TempDir()
	certs := filepath.Join(dir, "usr/share/ca-certificates/mozilla")
	if err := os.MkdirAll(certs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.crt", "b.crt"} {
		if err := os.WriteFile(filepath.Join(certs, name), []byte(name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := postInstall(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || string(got) != "a.crt\nb.crt\n" {
		t.Errorf("ca-certificates.crt = %q, %v, want both certificates", got, err)
	}
}

func TestConditionTrue(t *testing.T) {
	gateway := func(generation, observed int64, status string) object {
		return &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"generation": generation},
			"status": map[string]any{"conditions": []any{map[string]any{
				"type": "Programmed", "status": status, "observedGeneration": observed, "message": "no addresses",
			}}},
		}}
	}
	tests := []struct {
		name    string
		object  object
		wantErr string
	}{
		{"true", gateway(1, 1, "True"), ""},
		{"false", gateway(1, 1, "False"), "no addresses"},
		{"true of what it was before", gateway(2, 1, "True"), "earlier generation"},
		{"none", &unstructured.Unstructured{Object: map[string]any{}}, "no condition Programmed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := conditionTrue(tt.object, "Programmed")
			if tt.wantErr == "" && err != nil || tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("conditionTrue() = %v, want %q", err, tt.wantErr)
			}
		})
	}
}
