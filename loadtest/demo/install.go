package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// services are the Knative Services to call.
type services struct {
	manifests    string // kustomization that installs them
	optedIn, all []string
	each         int // pods of each; 0 means one
}

// pods returns the number of pods of each service.
func (s services) pods() int { return max(1, s.each) }

const (
	libraNamespace   = settings.Namespace
	agentNamespace   = settings.AgentNamespace
	servingNamespace = "knative-serving"

	libraManifests     = "manifests/base"
	activatorManifests = "manifests/activator/rights"

	applyTimeout = 2 * time.Minute
	readyTimeout = 4 * time.Minute
)

// images maps the names of the images in the manifests to their references.
type images map[string]string

func readImages(path string, s services) (images, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the images: %w; `box load` writes the file", err)
	}
	var im images
	if err := json.Unmarshal(data, &im); err != nil {
		return nil, fmt.Errorf("images: %s is not a JSON object from image name to reference: %w", path, err)
	}
	wanted := []string{libraActivatorImage, "libra-resizer", "libra-agent", "libra-predictor", "libra-fn-store"}
	for _, f := range s.all {
		wanted = append(wanted, "libra-fn-"+f)
	}
	var missing []string
	for _, name := range wanted {
		if im[name] == "" {
			missing = append(missing, name)
		}
	}
	if missing != nil {
		return nil, fmt.Errorf("images: %s does not name %s", path, strings.Join(missing, ", "))
	}
	return im, nil
}

// kustomization is the part of a kustomization file that the demo writes.
type kustomization struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Namespace  string           `json:"namespace,omitempty"`
	NameSuffix string           `json:"nameSuffix,omitempty"`
	Resources  []string         `json:"resources"`
	Components []string         `json:"components,omitempty"`
	Images     []kustomizeImage `json:"images"`
	Patches    []kustomizePatch `json:"patches,omitempty"`

	SortOptions *sortOptions `json:"sortOptions,omitempty"`
}

type sortOptions struct {
	Order string `json:"order"`
}

type kustomizePatch struct {
	Target kustomizeTarget `json:"target"`
	Patch  string          `json:"patch"`
}

type kustomizeTarget struct {
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
}

type kustomizeImage struct {
	Name    string `json:"name"`
	NewName string `json:"newName"`
	NewTag  string `json:"newTag,omitempty"`
	Digest  string `json:"digest,omitempty"`
}

// kustomize writes a kustomization into dir that adds our images and patches to the one at base,
// in namespace unless that is empty.
func (im images) kustomize(dir, base, namespace string, patches ...kustomizePatch) error {
	return im.write(dir, base, kustomization{Namespace: namespace, Patches: patches})
}

// write writes a kustomization into dir that adds our images, and k, to the one at base.
func (im images) write(dir, base string, k kustomization) error {
	relative, err := relativePath(dir, base)
	if err != nil {
		return err
	}
	k.APIVersion, k.Kind = "kustomize.config.k8s.io/v1beta1", "Kustomization"
	k.Resources = append([]string{relative}, k.Resources...)
	for name, reference := range im {
		k.Images = append(k.Images, kustomizeImageOf(name, reference))
	}
	slices.SortFunc(k.Images, func(a, b kustomizeImage) int { return strings.Compare(a.Name, b.Name) })
	data, err := yaml.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kustomization.yaml"), data, 0o644)
}

// relativePath returns the path from dir, which it creates, to manifests: kustomize takes only
// relative paths, and resolves symlinks first.
func relativePath(dir, manifests string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	from, err := realPath(dir)
	if err != nil {
		return "", err
	}
	to, err := realPath(manifests)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("there is no folder %s: run the demo from the root of the repository", manifests)
	}
	if err != nil {
		return "", err
	}
	return filepath.Rel(from, to)
}

func realPath(path string) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(absolute)
}

func kustomizeImageOf(name, reference string) kustomizeImage {
	if repository, digest, ok := strings.Cut(reference, "@"); ok {
		return kustomizeImage{Name: name, NewName: repository, Digest: digest}
	}
	// A colon before the last slash belongs to the registry's port.
	if colon := strings.LastIndex(reference, ":"); colon > strings.LastIndex(reference, "/") {
		return kustomizeImage{Name: name, NewName: reference[:colon], NewTag: reference[colon+1:]}
	}
	return kustomizeImage{Name: name, NewName: reference, NewTag: "latest"}
}

// apply applies the kustomization in dir. It retries, because webhooks may not be up yet.
func (k kubectl) apply(ctx context.Context, dir string) error {
	return eventually(ctx, applyTimeout, func(ctx context.Context) error {
		return k.applyFrom(ctx, nil, "-k", dir)
	})
}

// applyFrom applies what the arguments name, which may be stdin.
func (k kubectl) applyFrom(ctx context.Context, stdin io.Reader, from ...string) error {
	args := []string{"apply", "--server-side", "--force-conflicts", "--field-manager=" + fieldManager}
	_, err := k.do(ctx, call{timeout: time.Minute, stdin: stdin, args: append(args, from...)})
	return err
}

// installLibra applies all of Libra's parts but the activator, and waits for them.
func (d *demo) installLibra(ctx context.Context) error {
	dir := d.path("kustomize", "libra")
	var k kustomization
	var err error
	if d.boxed() {
		k.Patches = append(k.Patches, d.agentPatches()...)
	}
	switch {
	case d.redisAuth:
		err = d.secureRedis(ctx, dir, &k)
	case d.boxed():
		err = d.removeRedisUsers(ctx)
	}
	if err != nil {
		return err
	}
	if err := d.images.write(dir, libraManifests, k); err != nil {
		return err
	}
	if err := d.kubectl.apply(ctx, dir); err != nil {
		return err
	}
	for _, object := range []string{"deployment/redis", "deployment/libra-resizer"} {
		if err := d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "rollout", "status", object); err != nil {
			return err
		}
	}
	if err := d.awaitAgents(ctx); err != nil {
		return err
	}
	if err := d.awaitPredictor(ctx, func(c corev1.Container) error {
		if slices.Contains(c.Args, "--redis-addr="+redisTLSAddress) != d.redisAuth {
			return fmt.Errorf("deployment/libra-predictor still has the arguments %q, for another Redis", c.Args)
		}
		return nil
	}); err != nil {
		return err
	}
	return d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "wait", "--for=condition=Ready", "inferenceservice/libra")
}

// awaitPredictor waits until right accepts the predictor's container: KServe takes a moment to
// copy the InferenceService into the Deployment.
func (d *demo) awaitPredictor(ctx context.Context, right func(corev1.Container) error) error {
	if err := eventually(ctx, readyTimeout, func(ctx context.Context) error {
		var deployment appsv1.Deployment
		if err := d.kubectl.get(ctx, &deployment, "-n", libraNamespace, "deployment", "libra-predictor"); err != nil {
			return err
		}
		return right(deployment.Spec.Template.Spec.Containers[0])
	}); err != nil {
		return err
	}
	return d.kubectl.wait(ctx, readyTimeout, "-n", libraNamespace, "rollout", "status", "deployment/libra-predictor")
}

// awaitAgents waits until the DaemonSet has rolled out to all nodes.
func (d *demo) awaitAgents(ctx context.Context) error {
	return d.kubectl.wait(ctx, readyTimeout, "-n", agentNamespace, "rollout", "status", "daemonset/libra-agent")
}

// seeProcesses lets the agent see the processes of the box's other pods: cgroup v1 does not tell
// which of them wait for CPU.
var seeProcesses = kustomizePatch{
	Target: kustomizeTarget{Kind: "DaemonSet", Name: "libra-agent"},
	Patch:  "- {op: add, path: /spec/template/spec/hostPID, value: true}",
}

// seeOwnProc lets an agent see /proc as its node sees it: if a machine has several nodes, each
// has some of its CPUs and some of its memory.
var seeOwnProc = kustomizePatch{
	Target: seeProcesses.Target,
	Patch: `- {op: add, path: /spec/template/spec/volumes/-, value: {name: proc, hostPath: {path: /proc, type: Directory}}}
- {op: add, path: /spec/template/spec/containers/0/volumeMounts/-, value: {name: proc, mountPath: /host/proc, readOnly: true}}
- {op: add, path: /spec/template/spec/containers/0/args/-, value: --proc-root=/host/proc}`,
}

// agentPatches returns the patches that the agents need on the box.
func (d *demo) agentPatches() []kustomizePatch {
	if len(d.workers) == 0 {
		return []kustomizePatch{seeProcesses}
	}
	return []kustomizePatch{seeProcesses, seeOwnProc}
}

// nodeSelectorAnnotation says where a namespace's pods go. The API server of a box of several
// nodes follows it.
const nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"

// keepTogether has the pods of the namespace scheduled to one of several workers: loans are made
// between pods of a node.
func (d *demo) keepTogether(ctx context.Context) error {
	if len(d.workers) == 0 {
		return nil
	}
	_, err := d.kubectl.run(ctx, "annotate", "--overwrite", "namespace", d.namespace, nodeSelectorAnnotation+"=kubernetes.io/hostname="+d.workers[0])
	return err
}

// setMode sets the mode of the functions without a mode of their own. Before that, an install
// changes nothing. Applying the manifests again keeps the mode.
func (d *demo) setMode(ctx context.Context, mode api.Mode) error {
	_, err := d.kubectl.run(ctx, "-n", libraNamespace, "patch", "configmap", settings.ConfigMap,
		"--type=merge", fmt.Sprintf(`--patch={"data":{"mode":%q}}`, mode))
	return err
}

// setSource sets the source of a namespace.
func (d *demo) setSource(ctx context.Context, source api.Source, namespace string) error {
	_, err := d.kubectl.run(ctx, "label", "--overwrite", "namespace", namespace, fmt.Sprintf("%s=%s", api.SourceLabel, source))
	return err
}

// installFunctions applies the functions and waits for them.
func (d *demo) installFunctions(ctx context.Context) error {
	dir := d.path("kustomize", "functions")
	if err := d.images.kustomize(dir, d.services.manifests, d.namespace); err != nil {
		return err
	}
	if err := d.kubectl.apply(ctx, dir); err != nil {
		return err
	}
	if err := d.kubectl.wait(ctx, readyTimeout, "-n", d.namespace, "rollout", "status", "deployment/store"); err != nil {
		return err
	}
	return d.awaitServices(ctx, readyTimeout)
}

// awaitServices waits until the Knative Services of a place are ready.
func (d *demo) awaitServices(ctx context.Context, timeout time.Duration) error {
	args := []string{"-n", d.namespace, "wait", "--for=condition=Ready"}
	for _, f := range d.services.all {
		args = append(args, "services.serving.knative.dev/"+f)
	}
	return d.kubectl.wait(ctx, timeout, args...)
}
