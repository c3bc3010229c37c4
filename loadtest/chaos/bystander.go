package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"libra.dev/libra/loadtest/bench/rig"
)

const (
	bystanderName  = "chaos-bystander"
	bystanderImage = "libra-fn-spin"
)

// crowd creates a bystander that always wants both CPUs, so that functions are held to
// their allocations.
func (c *cluster) crowd(ctx context.Context) error {
	image, err := c.Image(bystanderImage)
	if err != nil {
		return err
	}
	pods := c.Kube.CoreV1().Pods(rig.Namespace)
	if _, err := pods.Create(ctx, bystander(image), metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = c.readyOf(ctx, place{namespace: rig.Namespace, selector: "app=" + bystanderName}, "")
	return err
}

// disperse deletes the bystander, if there is one.
func (c *cluster) disperse(ctx context.Context) error {
	pods := c.Kube.CoreV1().Pods(rig.Namespace)
	err := pods.Delete(ctx, bystanderName, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func bystander(image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: bystanderName, Namespace: rig.Namespace, Labels: map[string]string{"app": bystanderName}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks:           ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name:  "spin",
				Image: image,
				// Threads that always compute.
				Env: []corev1.EnvVar{{Name: "SPIN_THREADS", Value: "2"}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("30m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false),
					ReadOnlyRootFilesystem:   ptr.To(true),
					Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}
