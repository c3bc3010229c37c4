package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
)

const (
	// stockImageAnnotation keeps, on the activator's Deployment, the image that
	// was there before Libra's, so that it is found after a demo that was killed.
	stockImageAnnotation = "libra.dev/stock-image"

	fieldManager = "libra"

	activatorContainer  = "activator"
	libraActivatorImage = "libra-activator"
	activatorSelector   = "app=activator"

	swapTimeout   = 3 * time.Minute
	disownTimeout = 30 * time.Second
)

var activator = []string{"-n", servingNamespace, "deployment/activator"}

// activatorImages are the image that the activator has, and the stock one where
// that was replaced.
func (d *demo) activatorImages(ctx context.Context) (image, replaced string, err error) {
	var deployment appsv1.Deployment
	if err := d.kubectl.get(ctx, &deployment, activator...); err != nil {
		return "", "", err
	}
	replaced = deployment.Annotations[stockImageAnnotation]
	for _, c := range deployment.Spec.Template.Spec.Containers {
		if c.Name != activatorContainer {
			continue
		}
		if replaced == "" && strings.Contains(c.Image, libraActivatorImage) {
			return "", "", fmt.Errorf("deployment/activator in %s has the image %s, and no annotation %s that names the stock one: put that back by hand first",
				servingNamespace, c.Image, stockImageAnnotation)
		}
		return c.Image, replaced, nil
	}
	return "", "", fmt.Errorf("deployment/activator in %s has no container %s: is this Knative Serving?", servingNamespace, activatorContainer)
}

// installActivator puts Libra's activator in the stock one's place.
func (d *demo) installActivator(ctx context.Context) error {
	image, replaced, err := d.activatorImages(ctx)
	if err != nil {
		return err
	}
	if replaced == "" {
		if _, err := d.kubectl.run(ctx, slices.Concat([]string{"annotate"}, activator, []string{stockImageAnnotation + "=" + image})...); err != nil {
			return err
		}
	}
	if err := d.kubectl.apply(ctx, activatorManifests); err != nil {
		return err
	}
	pod := activatorPod(d.images[libraActivatorImage])
	if d.redisAuth {
		tellOfRedis(pod)
	}
	if err := d.setActivator(ctx, pod); err != nil {
		return err
	}
	return d.activatorReplaced(ctx)
}

// restoreActivator puts the stock activator back, if it is not there.
func (d *demo) restoreActivator(ctx context.Context) error {
	_, stock, err := d.activatorImages(ctx)
	if err != nil || stock == "" {
		return err
	}
	if err := d.setActivator(ctx, activatorPod(stock)); err != nil {
		return err
	}
	if err := d.activatorReplaced(ctx); err != nil {
		return err
	}
	if err := eventually(ctx, disownTimeout, d.disownActivator); err != nil {
		return err
	}
	_, err = d.kubectl.run(ctx, slices.Concat([]string{"annotate"}, activator, []string{stockImageAnnotation + "-"})...)
	return err
}

// activatorPod is an activator of an image, with some variables.
func activatorPod(image string, variables ...*applycorev1.EnvVarApplyConfiguration) *applycorev1.PodSpecApplyConfiguration {
	return applycorev1.PodSpec().WithContainers(
		applycorev1.Container().WithName(activatorContainer).WithImage(image).WithEnv(variables...))
}

func variable(name, value string) *applycorev1.EnvVarApplyConfiguration {
	return applycorev1.EnvVar().WithName(name).WithValue(value)
}

// setActivator has the activator's pods be so, and says nothing else of them: the server
// takes back what an earlier Libra set beside that.
func (d *demo) setActivator(ctx context.Context, pod *applycorev1.PodSpecApplyConfiguration) error {
	object, err := json.Marshal(applyappsv1.Deployment("activator", servingNamespace).WithSpec(
		applyappsv1.DeploymentSpec().WithTemplate(applycorev1.PodTemplateSpec().WithSpec(pod))))
	if err != nil {
		return err
	}
	_, err = d.kubectl.do(ctx, call{
		timeout: time.Minute,
		stdin:   bytes.NewReader(object),
		args:    []string{"apply", "--server-side", "--force-conflicts", "--field-manager=" + fieldManager, "-f", "-"},
	})
	return err
}

// disownActivator gives up the fields that are Libra's by server-side apply. To
// its owner's next one they would be a conflict.
func (d *demo) disownActivator(ctx context.Context) error {
	var deployment appsv1.Deployment
	if err := d.kubectl.get(ctx, &deployment, append(slices.Clone(activator), "--show-managed-fields")...); err != nil {
		return err
	}
	patch, err := disown(deployment.ObjectMeta)
	if err != nil {
		return err
	}
	_, err = d.kubectl.run(ctx, slices.Concat([]string{"patch"}, activator, []string{"--type=json", "--patch=" + string(patch)})...)
	return err
}

// disown is a JSON patch that takes our manager out of an object's, provided
// that the object has not changed since.
func disown(object metav1.ObjectMeta) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	others := slices.DeleteFunc(slices.Clone(object.ManagedFields), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == fieldManager
	})
	return json.Marshal([]operation{
		{"replace", "/metadata/resourceVersion", object.ResourceVersion},
		{"replace", "/metadata/managedFields", others},
	})
}

// activatorReplaced waits until the activator's new pods are all there are.
func (d *demo) activatorReplaced(ctx context.Context) error {
	if err := d.kubectl.wait(ctx, swapTimeout, slices.Concat([]string{"rollout", "status"}, activator)...); err != nil {
		return err
	}
	return eventually(ctx, swapTimeout, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := d.kubectl.get(ctx, &pods, "-n", servingNamespace, "pods", "-l", activatorSelector); err != nil {
			return err
		}
		var left error
		for _, p := range pods.Items {
			if p.DeletionTimestamp == nil {
				continue
			}
			left = errors.Join(left, fmt.Errorf("pod %s of the activator before has not ended", p.Name))
			if d.boxed() {
				// It would stay for 45 s, for the requests of others. A shorter
				// grace period alone does not hurry a kubelet that has begun.
				if _, err := d.kubectl.run(ctx, "-n", servingNamespace, "delete", "pod", p.Name, "--grace-period=0", "--force"); err != nil {
					left = errors.Join(left, err)
				}
			}
		}
		return left
	})
}
