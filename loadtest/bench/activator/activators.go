package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/networking"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/resizer/cgroup"
)

const (
	servingNamespace = "knative-serving"
	container        = "activator"
	libraImage       = "libra-activator"
	cgroupRoot       = "/sys/fs/cgroup"

	// benchLabel has the arm as its value. The copies lack the activator's own labels:
	// its Service would send them requests, and they would share out the pods.
	benchLabel = "libra.dev/bench-activator"

	startTimeout = 2 * time.Minute
)

// arm is one of the activators that are compared.
type arm struct {
	name  string
	libra bool

	addr   string
	cgroup cgroup.Container
}

func (a *arm) deployment() string { return "bench-activator-" + strings.ReplaceAll(a.name, "_", "-") }

// start runs the arm's activator: a copy of the installed Deployment. Libra's arm gets
// Libra's changes to it.
func (a *arm) start(ctx context.Context, r *rig.Rig) error {
	installed, err := r.Kube.AppsV1().Deployments(servingNamespace).Get(ctx, container, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("find the installed activator: %w", err)
	}
	if image := installed.Spec.Template.Spec.Containers[0].Image; strings.Contains(image, libraImage) {
		return fmt.Errorf("the installed activator has the image %s: `demo install` puts the stock one back", image)
	}
	if a.libra {
		image, err := r.Image(libraImage)
		if err != nil {
			return err
		}
		installed = withImage(installed, image)
	}
	if err := a.remove(ctx, r); err != nil {
		return err
	}
	if _, err := r.Kube.AppsV1().Deployments(servingNamespace).Create(ctx, a.copyOf(installed), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("start activator %s: %w", a.name, err)
	}
	return rig.Eventually(ctx, startTimeout, func(ctx context.Context) error {
		pods, err := r.Kube.CoreV1().Pods(servingNamespace).List(ctx, a.selector())
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, status := range pod.Status.ContainerStatuses {
				if pod.DeletionTimestamp != nil || !status.Ready {
					continue
				}
				a.addr = net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(networking.BackendHTTPPort))
				_, id, _ := strings.Cut(status.ContainerID, "://")
				a.cgroup, err = cgroup.Open(cgroupRoot, id)
				return err
			}
		}
		return fmt.Errorf("activator %s is not ready", a.name)
	})
}

func (a *arm) selector() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: benchLabel + "=" + a.name}
}

// copyOf returns one replica of the Deployment under the arm's name and label.
func (a *arm) copyOf(installed *appsv1.Deployment) *appsv1.Deployment {
	labels := map[string]string{benchLabel: a.name}
	spec := installed.Spec.DeepCopy()
	spec.Replicas = ptr.To[int32](1)
	spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	spec.Template.ObjectMeta = metav1.ObjectMeta{Labels: labels}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: a.deployment(), Namespace: servingNamespace, Labels: labels},
		Spec:       *spec,
	}
}

// withImage returns the Deployment with another image of the activator, which is all
// that docs/install.md changes.
func withImage(installed *appsv1.Deployment, image string) *appsv1.Deployment {
	d := installed.DeepCopy()
	for i, c := range d.Spec.Template.Spec.Containers {
		if c.Name == container {
			d.Spec.Template.Spec.Containers[i].Image = image
		}
	}
	return d
}

// remove removes the arm's activator, if there is one, without its drain of ten
// minutes.
func (a *arm) remove(ctx context.Context, r *rig.Rig) error {
	if a.cgroup != nil {
		a.cgroup.Close() //nolint:errcheck // only read
	}
	err := r.Kube.AppsV1().Deployments(servingNamespace).Delete(ctx, a.deployment(), metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove activator %s: %w", a.name, err)
	}
	pods := r.Kube.CoreV1().Pods(servingNamespace)
	return rig.Eventually(ctx, startTimeout, func(ctx context.Context) error {
		list, err := pods.List(ctx, a.selector())
		if err != nil {
			return err
		}
		_, err = r.Kube.AppsV1().Deployments(servingNamespace).Get(ctx, a.deployment(), metav1.GetOptions{})
		if len(list.Items) == 0 && apierrors.IsNotFound(err) {
			return nil
		}
		err = pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, a.selector())
		return errors.Join(fmt.Errorf("activator %s is still there", a.name), err)
	})
}

// cpu returns the CPU time that the arm's activator has used so far.
func (a *arm) cpu() (time.Duration, error) {
	reading, err := a.cgroup.Read()
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of activator %s: %w", a.name, err)
	}
	return reading.CPU, nil
}
