package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/trace"
	"libra.dev/libra/pkg/api"
)

const (
	storeManifests     = evaluationManifests + "/store"
	bystanderManifests = evaluationManifests + "/bystander"

	// servicesTimeout is how long a node of two cores may take to bring up all functions
	// of a phase.
	servicesTimeout = 8 * time.Minute

	evaluationPlaces = "evaluation-"
	demoPlaces       = "libra-demo"

	bystanderPlace = "bystander"
	spinDeployment = "spin"
)

// namespaceOf returns the namespace of the functions of a phase and an arm.
func namespaceOf(phase, place string) string {
	prefix := evaluationPlaces
	switch phase {
	case phaseDemo:
		// People who go on with the functions after the demo look for them there.
		if place == evaluation.Libra {
			return demoPlaces
		}
		prefix = demoPlaces + "-"
	case phaseMemory:
		prefix += "memory-"
	case phaseCost:
		prefix += "cost-"
	case phaseTwoEach, phaseFourEach:
		prefix += fmt.Sprintf("%d-each-", podsEach[phase])
	}
	return prefix + strings.ReplaceAll(place, "_", "-")
}

// isPlace reports whether a namespace belongs to an evaluation or a demo.
func isPlace(namespace string) bool {
	return strings.HasPrefix(namespace, evaluationPlaces) || namespace == demoPlaces || strings.HasPrefix(namespace, demoPlaces+"-")
}

// copied returns the name of a function in a set; in the first set it is the function's own.
func copied(function string, set int) string {
	if set == 1 {
		return function
	}
	return fmt.Sprintf("%s-%d", function, set)
}

// servicesOf returns the names of the functions in these sets.
func servicesOf(functions []string, sets ...int) []string {
	var names []string
	for _, set := range sets {
		for _, f := range functions {
			names = append(names, copied(f, set))
		}
	}
	return names
}

// placeFor returns the demo whose functions are those of an arm in a phase, in these sets.
func (e *evaluate) placeFor(ph phase, a arm, sets ...int) *demo {
	own := *e.demo
	own.namespace = ph.namespaceAt(a.place())
	functions := trace.Mixed
	if ph.name == phaseMemory {
		functions = []string{memoryFunction}
	}
	names := servicesOf(functions, sets...)
	own.services = services{manifests: a.manifests(ph.name), optedIn: names, all: names, each: podsEach[ph.name]}
	return &own
}

// bring installs what an arm needs in a phase: its namespace, its store, and its functions
// in these sets. It does not wait for them, so that many come up at once.
func (e *evaluate) bring(ctx context.Context, phase string, a arm, own *demo, sets ...int) error {
	if err := own.makeNamespace(ctx, a.source); err != nil {
		return err
	}
	if slices.Contains(sets, 1) && phase != phaseMemory {
		dir := e.path("kustomize", own.namespace, "store")
		if err := errors.Join(e.images.kustomize(dir, storeManifests, own.namespace), e.kubectl.apply(ctx, dir)); err != nil {
			return err
		}
	}
	for _, set := range sets {
		dir := e.path("kustomize", own.namespace, fmt.Sprintf("set-%d", set))
		k := kustomization{Namespace: own.namespace, Patches: patchesOf(phase, a)}
		if set > 1 {
			k.NameSuffix = fmt.Sprintf("-%d", set)
		}
		if err := errors.Join(e.images.write(dir, a.manifests(phase), k), e.kubectl.apply(ctx, dir)); err != nil {
			return err
		}
	}
	return nil
}

// up waits until all functions of a place are ready, and finds their targets.
func (e *evaluate) up(ctx context.Context, own *demo) error {
	if own.services.all[0] != memoryFunction {
		if err := e.kubectl.wait(ctx, readyTimeout, "-n", own.namespace, "rollout", "status", "deployment/store"); err != nil {
			return err
		}
	}
	if err := own.awaitServices(ctx, servicesTimeout); err != nil {
		return fmt.Errorf("the functions in %s are not ready; `kubectl get pods -n %[1]s` shows which, and whether the node has room for them: %w", own.namespace, err)
	}
	var err error
	own.targets, err = own.findTargets(ctx)
	return err
}

// patchesOf returns what a phase and an arm change in the arm's manifests.
func patchesOf(phase string, a arm) []kustomizePatch {
	service := kustomizeTarget{Kind: "Service", Group: "serving.knative.dev"}
	var patches []kustomizePatch
	if a.queue != "" {
		patches = append(patches, kustomizePatch{Target: service, Patch: annotate(api.QueueAnnotation, a.queue)})
	}
	if a.keepsIdle {
		patches = append(patches, kustomizePatch{Target: service, Patch: annotate(api.IdleAnnotation, api.IdleKeep)})
	}
	if a.perfect {
		patches = append(patches, kustomizePatch{Target: service, Patch: annotate(api.InputSizeAnnotation, "header:"+inputHeader)})
	}
	if phase == phaseCost {
		// With this window functions scale down within the other arms' blocks, and not
		// after Knative's minute.
		patches = append(patches, kustomizePatch{Target: service, Patch: annotate("autoscaling.knative.dev/max-scale", "8") + annotate("autoscaling.knative.dev/window", "10s")})
	}
	if n := podsEach[phase]; n > 0 {
		patches = append(patches, spread(n)...)
	}
	return patches
}

// annotate returns a JSON patch that sets an annotation of a revision template.
func annotate(name, value string) string {
	return fmt.Sprintf("- {op: add, path: /spec/template/metadata/annotations/%s, value: %q}\n", strings.ReplaceAll(name, "/", "~1"), value)
}

// remove removes the namespaces of some places, and waits until their pods are gone:
// before that the node has no room for what comes next.
func (d *demo) remove(ctx context.Context, places ...*demo) error {
	var errs []error
	for _, own := range places {
		_, err := d.kubectl.run(ctx, "delete", "--ignore-not-found", "--wait=false", "namespace/"+own.namespace)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return eventually(ctx, removeTimeout, func(ctx context.Context) error {
		for _, own := range places {
			var pods corev1.PodList
			if err := d.kubectl.get(ctx, &pods, "pods", "-n", own.namespace); err != nil {
				return err
			}
			if len(pods.Items) > 0 {
				return fmt.Errorf("pods in %s that have not ended yet: %d", own.namespace, len(pods.Items))
			}
		}
		return nil
	})
}

// bringBystanders installs the services that have nothing to do with the functions.
func (e *evaluate) bringBystanders(ctx context.Context, phase string) (*demo, error) {
	own := *e.demo
	own.namespace = namespaceOf(phase, bystanderPlace)
	own.services = services{manifests: bystanderManifests, all: []string{plainFunction}}
	dir := e.path("kustomize", own.namespace)
	if err := errors.Join(own.makeNamespace(ctx, ""), e.images.kustomize(dir, bystanderManifests, own.namespace), e.kubectl.apply(ctx, dir)); err != nil {
		return nil, err
	}
	if err := own.awaitServices(ctx, readyTimeout); err != nil {
		return nil, err
	}
	var err error
	own.targets, err = own.findTargets(ctx)
	return &own, err
}

// spin starts or stops the program that always computes.
func (e *evaluate) spin(ctx context.Context, own *demo, replicas int) error {
	if _, err := e.kubectl.run(ctx, "-n", own.namespace, "scale", "deployment/"+spinDeployment, fmt.Sprintf("--replicas=%d", replicas)); err != nil {
		return err
	}
	return eventually(ctx, readyTimeout, func(ctx context.Context) error {
		var deployment appsv1.Deployment
		if err := e.kubectl.get(ctx, &deployment, "-n", own.namespace, "deployment", spinDeployment); err != nil {
			return err
		}
		if deployment.Status.ReadyReplicas != int32(replicas) || deployment.Status.Replicas != int32(replicas) {
			return fmt.Errorf("deployment/%s in %s: %d of %d pods are ready, want %d", spinDeployment, own.namespace, deployment.Status.ReadyReplicas, deployment.Status.Replicas, replicas)
		}
		return nil
	})
}

// describe returns what the owners of the functions at a place configured.
func (d *demo) describe(ctx context.Context, functions []string, sets int) ([]evaluation.Function, error) {
	configured, err := d.configured(ctx)
	if err != nil {
		return nil, err
	}
	var described []evaluation.Function
	for set := 1; set <= sets; set++ {
		for _, f := range functions {
			template := configured[copied(f, 1)]
			described = append(described, evaluation.Function{
				Name: f, Set: set, Limit: template.limit, Concurrency: template.concurrency,
				Waits: slices.Contains(waiting, f), Related: slices.Contains(trace.Related, f) || f == memoryFunction,
			})
		}
	}
	return described, nil
}

// waiting are the functions that wait more than they compute.
var waiting = []string{"uploader", "dynamichtml"}
