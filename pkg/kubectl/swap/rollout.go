package swap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	lookEvery = 500 * time.Millisecond
	tellEvery = 5 * time.Second
)

// stuck are reasons for which a container waits that do not pass by themselves.
var stuck = []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff", "CreateContainerConfigError"}

// await waits until all of the activator's pods run an image and are ready. It does not wait out the
// timeout when a pod says that it never will be.
func (s Swap) await(ctx context.Context, image string) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	ticker := s.Clock.NewTicker(lookEvery)
	defer ticker.Stop()
	told := s.Clock.Now()
	for {
		progress, done, err := s.rollout(ctx, image)
		if done || errors.Is(err, errStuck) {
			return err
		}
		if err != nil {
			progress = err.Error()
		}
		if s.Clock.Since(told) >= tellEvery {
			told = s.Clock.Now()
			s.say("waiting: %s", progress)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %v: %s", s.Timeout, progress)
		case <-ticker.C():
		}
	}
}

// errStuck is a rollout that a pod says will not end.
var errStuck = errors.New("a pod cannot start")

// rollout says how far the Deployment is, and whether it is done.
func (s Swap) rollout(ctx context.Context, image string) (progress string, done bool, err error) {
	d, err := s.deployment(ctx)
	if err != nil {
		return "", false, err
	}
	if current, err := ImageOf(d); err != nil || current != image {
		return fmt.Sprintf("the image is %s by now, and not %s: somebody else has set it", current, image), false, err
	}
	if rolledOut(d) {
		return "", true, nil
	}
	pods, err := s.podsOf(ctx, d)
	if err != nil {
		return "", false, err
	}
	progress = fmt.Sprintf("%d of %d pods are new, %d of them ready, %d old ones left",
		d.Status.UpdatedReplicas, replicas(d), newAndReady(pods, image), d.Status.Replicas-d.Status.UpdatedReplicas)
	for _, p := range pods {
		waiting := waitingOf(p, image)
		if waiting == nil {
			continue
		}
		why := fmt.Sprintf("pod %s waits: %s %s", p.Name, waiting.Reason, waiting.Message)
		if slices.Contains(stuck, waiting.Reason) {
			return "", false, fmt.Errorf("%w: %s", errStuck, why)
		}
		progress += "; " + why
	}
	return progress, false, nil
}

// rolledOut is a Deployment whose pods are all new and available.
func rolledOut(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == replicas(d) &&
		s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == s.UpdatedReplicas
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

func newAndReady(pods []corev1.Pod, image string) (n int) {
	for _, p := range pods {
		if runs(p, image) && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			n++
		}
	}
	return n
}

// waitingOf is why the activator's container of a pod that is to run an image does not.
func waitingOf(p corev1.Pod, image string) *corev1.ContainerStateWaiting {
	if p.DeletionTimestamp != nil || !runs(p, image) {
		return nil
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == Container {
			return c.State.Waiting
		}
	}
	return nil
}

func runs(p corev1.Pod, image string) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == Container && c.Image == image })
}
