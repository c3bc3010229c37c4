package rig

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	spinImage  = "libra-fn-spin"
	// SpinPort is the port that a function's own container listens on.
	SpinPort = 8080
)

// Function describes a Knative service of spin for a bench. It always has the given
// number of pods, each with one request at a time.
type Function struct {
	Name    string
	OptedIn bool
	Pods    int
	Limits  api.Resources
}

// Deployed is a function on the box.
type Deployed struct {
	Revision string
	Host     string
	Pods     []Pod
}

// Pod is a pod of a function. Container is the user container, open until Close.
type Pod struct {
	Name       string // without the namespace
	IP         string
	Allocation api.Resources
	Container  cgroup.Container
}

// Key names the pod as the pool does.
func (p Pod) Key() string { return Namespace + "/" + p.Name }

// CPULimit is the CPU limit in force, in thousandths of a core.
func (p Pod) CPULimit() (int64, error) {
	r, err := p.Container.Read()
	if err != nil {
		return 0, fmt.Errorf("read the CPU limit of pod %s: %w", p.Name, err)
	}
	return r.Limit.CPUMilli, nil
}

// Deploy makes a function anew and waits for its pods.
func (r *Rig) Deploy(ctx context.Context, f Function) (Deployed, error) {
	r.Say("deploying function %s with %d pod(s)", f.Name, f.Pods)
	if err := r.Remove(ctx, f.Name); err != nil {
		return Deployed{}, err
	}
	image, err := r.Image(spinImage)
	if err != nil {
		return Deployed{}, err
	}
	services := r.Knative.ServingV1().Services(Namespace)
	// Webhooks may not be up yet.
	if err := Eventually(ctx, readyTimeout, func(ctx context.Context) error {
		_, err := services.Create(ctx, f.service(image), metav1.CreateOptions{})
		return err
	}); err != nil {
		return Deployed{}, fmt.Errorf("create function %s: %w", f.Name, err)
	}
	var d Deployed
	err = Eventually(ctx, readyTimeout, func(ctx context.Context) error {
		service, err := services.Get(ctx, f.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !service.IsReady() || service.Status.URL == nil {
			return fmt.Errorf("function %s is not ready: %v", f.Name, service.Status.GetCondition(servingv1.ServiceConditionReady))
		}
		d.Revision, d.Host = service.Status.LatestReadyRevisionName, service.Status.URL.Host
		d.Close()
		d.Pods, err = r.pods(ctx, f)
		return err
	})
	return d, err
}

// Close closes the containers of the function's pods.
func (d *Deployed) Close() {
	for _, p := range d.Pods {
		p.Container.Close() //nolint:errcheck // only read
	}
	d.Pods = nil
}

// pods returns the running pods of a function, and an error unless all are there.
func (r *Rig) pods(ctx context.Context, f Function) ([]Pod, error) {
	list, err := r.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: serving.ServiceLabelKey + "=" + f.Name})
	if err != nil {
		return nil, err
	}
	var found Deployed
	for _, pod := range list.Items {
		if pod.DeletionTimestamp != nil || pod.Status.PodIP == "" {
			continue
		}
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name != api.UserContainer || !status.Ready {
				continue
			}
			_, id, _ := strings.Cut(status.ContainerID, "://")
			container, err := cgroup.Open(cgroupRoot, id)
			if err != nil {
				found.Close()
				return nil, err
			}
			found.Pods = append(found.Pods, Pod{Name: pod.Name, IP: pod.Status.PodIP, Allocation: f.Limits, Container: container})
		}
	}
	if len(found.Pods) != f.Pods {
		n := len(found.Pods)
		found.Close()
		return nil, fmt.Errorf("function %s has %d ready pods, want %d", f.Name, n, f.Pods)
	}
	return found.Pods, nil
}

// Remove removes a function, if it is there, and waits until its pods are gone.
func (r *Rig) Remove(ctx context.Context, name string) error {
	err := r.Knative.ServingV1().Services(Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove function %s: %w", name, err)
	}
	err = Eventually(ctx, readyTimeout, func(ctx context.Context) error {
		pods := r.Kube.CoreV1().Pods(Namespace)
		// Draining would wait for requests that nobody sends.
		selector := metav1.ListOptions{LabelSelector: serving.ServiceLabelKey + "=" + name}
		list, err := pods.List(ctx, selector)
		if err != nil || len(list.Items) == 0 {
			return err
		}
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, selector); err != nil {
			return err
		}
		return fmt.Errorf("pods that are left: %d", len(list.Items))
	})
	if err != nil {
		return fmt.Errorf("remove function %s: %w", name, err)
	}
	return nil
}

func (f Function) service(image string) *servingv1.Service {
	pods := strconv.Itoa(f.Pods)
	template := metav1.ObjectMeta{Annotations: map[string]string{
		autoscaling.MinScaleAnnotationKey: pods,
		autoscaling.MaxScaleAnnotationKey: pods,
		// Keep the activator in the path.
		autoscaling.TargetBurstCapacityKey: "-1",
	}}
	if f.OptedIn {
		template.Labels = map[string]string{api.EnabledLabel: api.EnabledValue}
	}
	return &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: f.Name, Namespace: Namespace},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: template,
			Spec: servingv1.RevisionSpec{
				ContainerConcurrency: ptr.To[int64](1),
				PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
					Image: image,
					// By default Go takes the number of threads from the limit.
					Env:   []corev1.EnvVar{{Name: "GOMAXPROCS", Value: "2"}},
					Ports: []corev1.ContainerPort{{ContainerPort: SpinPort}},
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{
							corev1.ResourceCPU:    resource.MustParse("10m"),
							corev1.ResourceMemory: resource.MustParse("16Mi"),
						},
						Limits: f.Limits.List(),
					},
					SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: ptr.To(false),
						ReadOnlyRootFilesystem:   ptr.To(true),
						RunAsNonRoot:             ptr.To(true),
						Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
				}}},
			},
		}}},
	}
}

// AwaitCPULimit polls the container until its CPU limit is as wanted, and returns
// the time when it first saw that. It sleeps between polls to leave the cores to
// what is measured: the time is late by at most one such pause and the read.
func AwaitCPULimit(ctx context.Context, p Pod, every, timeout time.Duration, wanted func(milli int64) bool) (seen time.Time, err error) {
	deadline := time.Now().Add(timeout)
	err = Promptly(func() error {
		for {
			milli, err := p.CPULimit()
			seen = time.Now()
			switch {
			case err != nil:
				return err
			case wanted(milli):
				return nil
			case ctx.Err() != nil:
				return ctx.Err()
			case seen.After(deadline):
				return fmt.Errorf("the CPU limit of pod %s is still %dm after %v", p.Name, milli, timeout)
			}
			Sleep(every)
		}
	})
	return seen, err
}
