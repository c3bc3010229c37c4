package swap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"libra.dev/libra/pkg/api"
)

const (
	lookEvery = 500 * time.Millisecond
	tellEvery = 5 * time.Second
)

// stuck are the reasons for a container to wait that do not pass by themselves.
var stuck = []string{"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CrashLoopBackOff", "CreateContainerConfigError"}

// await waits until all of the activator's pods run an image and are ready. It fails before the
// timeout when a pod says that it cannot start.
func (s Swap) await(ctx context.Context, image string) error {
	return Await(ctx, lookEvery, s.Timeout, func(left string) { s.say("waiting: %s", left) }, func(ctx context.Context) (string, error) { return s.rollout(ctx, image) })
}

// Await waits until look finds nothing left, and tells now and then what is left.
func Await(ctx context.Context, every, timeout time.Duration, tell func(left string), look func(context.Context) (left string, err error)) error {
	var left string
	told := time.Now()
	err := wait.PollUntilContextTimeout(ctx, every, timeout, true, func(context.Context) (bool, error) {
		// A look that has begun may end, so that there is something to say. The client bounds it.
		var err error
		if left, err = look(ctx); errors.Is(err, errStuck) {
			return false, err
		}
		if err != nil {
			left = err.Error()
		}
		if left != "" && time.Since(told) >= tellEvery {
			told = time.Now()
			tell(left)
		}
		return left == "", nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("waiting for up to %v: %s: %w", timeout, left, err)
	}
	return err
}

// errStuck means that a pod says that the rollout will not end.
var errStuck = errors.New("a pod cannot start")

// rollout says how far the Deployment is, and "" when it is done.
func (s Swap) rollout(ctx context.Context, image string) (progress string, err error) {
	d, err := s.deployment(ctx)
	if err != nil {
		return "", err
	}
	if current, err := ImageOf(d); err != nil || current != image {
		return fmt.Sprintf("the image is now %s, not %s: somebody else has set it", current, image), err
	}
	if rolledOut(d) {
		return "", nil
	}
	pods, err := s.podsOf(ctx, d)
	if err != nil {
		return "", err
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
			return "", fmt.Errorf("%w: %s", errStuck, why)
		}
		progress += "; " + why
	}
	return progress, nil
}

// rolledOut reports whether all pods of the Deployment are new and available.
func rolledOut(d *appsv1.Deployment) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == replicas(d) &&
		s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == s.UpdatedReplicas
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

func newAndReady(pods []corev1.Pod, image string) (n int) {
	for _, p := range pods {
		if runs(p, image) && api.PodReady(&p) {
			n++
		}
	}
	return n
}

// waitingOf returns why the activator's container does not run in a pod that is to run
// image; nil if it does not wait.
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
