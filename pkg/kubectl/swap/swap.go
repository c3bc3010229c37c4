// Package swap puts Libra's activator in the place of Knative's, and back. It changes the image and one annotation of
// Knative's Deployment. At the end the owner finds the Deployment as it was, managed fields included.
package swap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Namespace and Name name the Deployment, and Container the container in it that changes.
	Namespace = "knative-serving"
	Name      = "activator"
	Container = "activator"

	// StockImageAnnotation, on Knative's Deployment of the activator, keeps the image that was there before Libra's. It is
	// written together with Libra's image.
	StockImageAnnotation = "libra.dev/stock-image"

	// FieldManager is the field manager that owns what Libra has changed.
	FieldManager = "libra"

	// LibraName is the name of Libra's activator: the names of its images end in it, whatever the
	// registry, and its rights have it.
	LibraName = "libra-activator"
)

// Swap is one change of the activator.
type Swap struct {
	Client client.Client
	// Out gets the messages about progress.
	Out io.Writer
	// Timeout bounds how long a rollout may take.
	Timeout time.Duration
	// DryRun says what would be done, and does nothing.
	DryRun bool
}

// Install has the activator run image, and writes down which image it ran before. extend adds anything else that the pods
// are to have; nil adds nothing. If the new pods do not become ready, Install puts the previous image back, unless
// that was the same. It can be run
// again, even if a stock image has come back meanwhile.
func (s Swap) Install(ctx context.Context, image string, extend func(*applycorev1.PodSpecApplyConfiguration)) error {
	d, err := s.deployment(ctx)
	if err != nil {
		return err
	}
	before, err := s.imageBefore(ctx, d, image)
	if err != nil {
		return err
	}
	if keeper := KeeperOf(d); keeper != nil {
		if current, _ := ImageOf(d); current == image {
			s.say("%s already keeps %s at %s: nothing to change", keeper.Name, Name, image)
			return s.await(ctx, image)
		}
		return keeper.refusal(d, image)
	}
	if s.DryRun {
		s.say("would set the image of %s to %s, and the annotation %s to %s", where, image, StockImageAnnotation, before.stock)
		return nil
	}
	if before.running == image {
		s.say("%s already has the image %s", where, image)
	} else {
		s.say("changing the image of %s from %s to %s", where, before.running, image)
	}
	if err := s.set(ctx, image, before.stock, extend); err != nil {
		return err
	}
	failure := s.await(ctx, image)
	if failure == nil {
		s.say("Libra's activator runs; the annotation %s records the stock image", StockImageAnnotation)
		return nil
	}
	if before.running == image {
		return fmt.Errorf("the activator is not ready: %w; it had this image before, so nothing is put back: `kubectl libra activator remove` puts the stock image back", failure)
	}
	return s.putBack(ctx, before, failure)
}

// putBack has the activator run what ran before, because its successor does not become ready.
func (s Swap) putBack(ctx context.Context, before before, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout+time.Minute)
	defer cancel()
	failure = fmt.Errorf("the new activator is not ready: %w", failure)
	s.say("%v", failure)
	s.say("putting %s back", before.running)
	var err error
	if before.running == before.stock {
		err = s.restore(ctx, before.stock)
	} else if err = s.set(ctx, before.running, before.stock, nil); err == nil {
		err = s.await(ctx, before.running)
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("putting %s back: %w", before.running, err))
	}
	return fmt.Errorf("%w; %s is back", failure, before.running)
}

// Remove has the activator run the stock image again, and removes what Libra wrote on its Deployment.
func (s Swap) Remove(ctx context.Context) error {
	d, err := s.deployment(ctx)
	if apierrors.IsNotFound(err) {
		s.say("there is no %s: nothing to put back", where)
		return nil
	}
	if err != nil {
		return err
	}
	current, err := ImageOf(d)
	if err != nil {
		return err
	}
	stock := d.Annotations[StockImageAnnotation]
	switch {
	case stock == "" && !IsLibras(d, current):
		s.say("%s runs %s, which is not Libra's: nothing to put back", where, current)
		return nil
	case KeeperOf(d) != nil:
		return KeeperOf(d).removal(d, current)
	case stock == "":
		return noStockImage(current)
	case !IsLibras(d, current):
		stock = current // somebody has put another there since, as an upgrade of Knative does
	}
	if s.DryRun {
		s.say("would set the image of %s to %s, and remove what Libra wrote on it", where, stock)
		return nil
	}
	s.say("changing the image of %s from %s to %s", where, current, stock)
	return s.restore(ctx, stock)
}

// restore has the activator run the stock image, and then gives up what Libra owns of the Deployment.
func (s Swap) restore(ctx context.Context, stock string) error {
	if err := s.set(ctx, stock, stock, nil); err != nil {
		return err
	}
	if err := s.await(ctx, stock); err != nil {
		return err
	}
	if err := s.disown(ctx); err != nil {
		return err
	}
	s.say("the stock activator runs")
	return nil
}

// where the swap happens, for messages.
const where = "deployment/" + Name + " in " + Namespace

func (s Swap) say(format string, args ...any) {
	fmt.Fprintf(s.Out, format+"\n", args...) //nolint:errcheck // nobody is left to be told
}

func (s Swap) deployment(ctx context.Context) (*appsv1.Deployment, error) {
	var d appsv1.Deployment
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: Name}, &d); err != nil {
		return nil, fmt.Errorf("reading %s, which is part of Knative Serving: %w", where, err)
	}
	return &d, nil
}

// set has the activator's pods run an image, and applies nothing else but what extend adds. The API server removes
// anything else that an earlier Libra set.
func (s Swap) set(ctx context.Context, image, stock string, extend func(*applycorev1.PodSpecApplyConfiguration)) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := s.deployment(ctx)
		if err != nil {
			return err
		}
		pod := applycorev1.PodSpec().WithContainers(applycorev1.Container().WithName(Container).WithImage(image))
		if extend != nil {
			extend(pod)
		}
		// The resource version makes the change fail if the Deployment has changed since it was read.
		return s.Client.Apply(ctx, applyappsv1.Deployment(Name, Namespace).WithResourceVersion(d.ResourceVersion).
			WithAnnotations(map[string]string{StockImageAnnotation: stock}).
			WithSpec(applyappsv1.DeploymentSpec().WithTemplate(applycorev1.PodTemplateSpec().WithSpec(pod))),
			client.FieldOwner(FieldManager), client.ForceOwnership)
	})
	if err != nil {
		return fmt.Errorf("setting the image of %s to %s: %w", where, image, err)
	}
	return nil
}

// ImageOf returns the image of the activator's container.
func ImageOf(d *appsv1.Deployment) (string, error) {
	for _, c := range d.Spec.Template.Spec.Containers {
		if c.Name == Container {
			return c.Image, nil
		}
	}
	return "", fmt.Errorf("%s has no container %s: it may not be Knative Serving's", where, Container)
}

// IsLibras reports whether an image of the Deployment is Libra's: one that Libra set and nobody has changed since, or one
// with Libra's name, such as one that was set by hand.
func IsLibras(d *appsv1.Deployment, image string) bool {
	if image == d.Annotations[StockImageAnnotation] {
		return false
	}
	return ownsImage(d) || strings.HasSuffix(Repository(image), LibraName)
}

// Repository returns an image reference without its tag and digest.
func Repository(reference string) string {
	reference, _, _ = strings.Cut(reference, "@")
	// A colon before the last slash belongs to the registry's port.
	if colon := strings.LastIndex(reference, ":"); colon > strings.LastIndex(reference, "/") {
		reference = reference[:colon]
	}
	return reference
}

func noStockImage(current string) error {
	return fmt.Errorf("%s runs %s, and has no annotation %s that names the stock image: apply Knative's own manifest of the activator, or set that annotation, and run this again",
		where, current, StockImageAnnotation)
}

// podsOf returns the activator's pods.
func (s Swap) podsOf(ctx context.Context, d *appsv1.Deployment) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := s.Client.List(ctx, &pods, client.InNamespace(Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels)); err != nil {
		return nil, fmt.Errorf("listing the pods of %s: %w", where, err)
	}
	return pods.Items, nil
}
