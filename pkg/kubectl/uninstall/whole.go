package uninstall

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

// notWhole says which pods have limits that Libra set and that are not those of their Revisions.
func (u Uninstall) notWhole(ctx context.Context) ([]string, error) {
	var pods corev1.PodList
	// Also those that do not take part any more, which the resizer gives back what they are owed.
	if err := u.Client.List(ctx, &pods, client.HasLabels{serving.RevisionLabelKey}); err != nil {
		return nil, fmt.Errorf("listing the functions' pods: %w", err)
	}
	var away []string
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning || !actuate.Resized(&pod) {
			continue
		}
		why, err := u.away(ctx, &pod)
		if err != nil {
			return nil, err
		}
		if why != "" {
			away = append(away, fmt.Sprintf("%s/%s: %s", pod.Namespace, pod.Name, why))
		}
	}
	return away, nil
}

// away says how far a pod is from what it is owed; empty when it is not.
func (u Uninstall) away(ctx context.Context, pod *corev1.Pod) (string, error) {
	var revision servingv1.Revision
	err := u.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}, &revision)
	if apierrors.IsNotFound(err) {
		return "", nil // its pods go, too
	}
	if err != nil {
		return "", fmt.Errorf("what pod %s/%s is owed: %w", pod.Namespace, pod.Name, err)
	}
	user := *revision.Spec.GetContainer()
	if user.Name == "" {
		user.Name = api.UserContainer
	}
	ours, err := actuate.ResizedLimits(pod, user.Name)
	if err != nil {
		return "", err
	}
	owed := api.FromList(user.Resources.Limits)
	for _, c := range pod.Spec.Containers {
		if c.Name == user.Name && differs(ours, owed, c.Resources.Limits) {
			return fmt.Sprintf("its limits are %v, and it is owed %v", api.FromList(c.Resources.Limits), owed), nil
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == user.Name && c.Resources != nil && differs(ours, owed, c.Resources.Limits) {
			return fmt.Sprintf("its limits in force are %v, and it is owed %v", api.FromList(c.Resources.Limits), owed), nil
		}
	}
	return "", nil
}

// differs says whether a limit that Libra set is not what is owed. One that the owner has not set is not Libra's.
func differs(ours actuate.LimitNames, owed api.Resources, limits corev1.ResourceList) bool {
	has := api.FromList(limits)
	return ours.Has(corev1.ResourceCPU) && owed.CPUMilli != 0 && has.CPUMilli != owed.CPUMilli ||
		ours.Has(corev1.ResourceMemory) && owed.MemoryBytes != 0 && has.MemoryBytes != owed.MemoryBytes
}
