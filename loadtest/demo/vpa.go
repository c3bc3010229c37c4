package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

const (
	vpaManifests = "loadtest/vpa"
	vpaObject    = "loadtest/vpa/autoscaler.yaml"
	// vpaUpstream is the file with upstream's definitions and roles, which the box
	// writes beside the images' references.
	vpaUpstream  = "vpa-upstream.yaml"
	vpaNamespace = "kube-system"
	vpaReplicas  = "--replicas=%d"
)

// vpaImages are the images that the box makes only on request.
var vpaImages = []string{"vpa-recommender", "vpa-updater", "metrics-server"}

// vpaParts are stopped while it is not the arm's turn: they would find that the
// functions, which are idle then, need nothing.
var vpaParts = []string{"deployment/vpa-recommender", "deployment/vpa-updater"}

// upstreamPath is the path of vpaUpstream.
func (d *demo) upstreamPath() string { return filepath.Join(filepath.Dir(d.imagesFile), vpaUpstream) }

// checkVPA returns an error that names what the autoscaler lacks.
func (d *demo) checkVPA() error {
	var missing []string
	for _, name := range vpaImages {
		if d.images[name] == "" {
			missing = append(missing, name)
		}
	}
	if _, err := os.Stat(d.upstreamPath()); err != nil {
		missing = append(missing, d.upstreamPath())
	}
	if missing != nil {
		return fmt.Errorf("the arm vpa needs %s: `box load --with vpa` makes them, or leave the arm out with --without vpa", strings.Join(missing, ", "))
	}
	return nil
}

// installVPA installs the autoscaler.
func (e *evaluate) installVPA(ctx context.Context) error {
	e.say("vertical pod autoscaler: applying %s", vpaManifests)
	if err := e.kubectl.applyFrom(ctx, nil, "-f", e.upstreamPath()); err != nil {
		return err
	}
	dir := e.path("kustomize", "vpa")
	if err := e.images.kustomize(dir, vpaManifests, ""); err != nil {
		return err
	}
	if err := e.kubectl.apply(ctx, dir); err != nil {
		return err
	}
	for _, part := range append([]string{"deployment/metrics-server"}, vpaParts...) {
		if err := e.kubectl.wait(ctx, readyTimeout, "-n", vpaNamespace, "rollout", "status", part); err != nil {
			return err
		}
	}
	return e.kubectl.wait(ctx, time.Minute, "wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io")
}

// autoscale puts the functions of own under the autoscaler.
func (e *evaluate) autoscale(ctx context.Context, own *demo) error {
	objects, err := autoscalers(own)
	if err != nil {
		return err
	}
	// The definitions may have been installed a moment ago.
	return eventually(ctx, time.Minute, func(ctx context.Context) error {
		return e.kubectl.applyFrom(ctx, strings.NewReader(objects), "-f", "-")
	})
}

// autoscalers returns the autoscaler's objects for the functions of own, as YAML
// documents.
func autoscalers(own *demo) (string, error) {
	text, err := os.ReadFile(vpaObject)
	if err != nil {
		return "", fmt.Errorf("run this from the root of the repository: %w", err)
	}
	var documents []string
	for _, f := range own.services.optedIn {
		var object struct {
			APIVersion string            `json:"apiVersion"`
			Kind       string            `json:"kind"`
			Metadata   map[string]string `json:"metadata"`
			Spec       map[string]any    `json:"spec"`
		}
		if err := yaml.UnmarshalStrict(text, &object); err != nil {
			return "", fmt.Errorf("%s: %w", vpaObject, err)
		}
		_, revision, _ := strings.Cut(own.targets.revisions[f], "/")
		object.Metadata = map[string]string{"name": f, "namespace": own.namespace}
		object.Spec["targetRef"] = map[string]string{"apiVersion": appsv1.SchemeGroupVersion.String(), "kind": "Deployment", "name": revision + "-deployment"}
		document, err := yaml.Marshal(object)
		if err != nil {
			return "", err
		}
		documents = append(documents, string(document))
	}
	return strings.Join(documents, "---\n"), nil
}

// scaleVPA starts or stops the parts that learn and resize.
func (e *evaluate) scaleVPA(ctx context.Context, replicas int) error {
	args := append([]string{"-n", vpaNamespace, "scale", fmt.Sprintf(vpaReplicas, replicas)}, vpaParts...)
	if _, err := e.kubectl.run(ctx, args...); err != nil {
		return err
	}
	for _, part := range vpaParts {
		if err := e.kubectl.wait(ctx, readyTimeout, "-n", vpaNamespace, "rollout", "status", part); err != nil {
			return err
		}
	}
	return nil
}

// removeVPA removes the autoscaler. While its metrics server is registered and does not
// answer, no namespace can be removed.
func (e *evaluate) removeVPA(ctx context.Context) error {
	remove := func(args ...string) error {
		_, err := e.kubectl.do(ctx, call{timeout: removeTimeout, args: append([]string{"delete", "--ignore-not-found"}, args...)})
		return err
	}
	return errors.Join(remove("-k", vpaManifests), remove("-f", e.upstreamPath()))
}
