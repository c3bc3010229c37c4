package uninstall

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/debt"
	"libra.dev/libra/resizer/actuate"
)

// podsAtATime bounds what the Job holds of the cluster's pods, which may be tens of thousands.
const podsAtATime = 500

// notWhole says which pods have limits that Libra set and that are not those of their Revisions.
func (u Uninstall) notWhole(ctx context.Context) ([]string, error) {
	var away []string
	page := metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	for {
		// Also those that do not take part any more, which the resizer gives back what they are owed.
		if err := u.Client.List(ctx, &page, client.HasLabels{serving.RevisionLabelKey}, client.Limit(podsAtATime), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("listing the functions' pods: %w", err)
		}
		for i := range page.Items {
			if o := &page.Items[i]; o.DeletionTimestamp == nil && actuate.Resized(o) {
				why, err := u.away(ctx, client.ObjectKeyFromObject(o))
				if err != nil {
					return nil, err
				}
				if why != "" {
					away = append(away, fmt.Sprintf("%s/%s: %s", o.Namespace, o.Name, why))
				}
			}
		}
		if page.Continue == "" {
			return away, nil
		}
	}
}

// away says how far a running pod is from what it is owed; empty when it is not.
func (u Uninstall) away(ctx context.Context, name client.ObjectKey) (string, error) {
	var pod corev1.Pod
	if err := u.Client.Get(ctx, name, &pod); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	if pod.Status.Phase != corev1.PodRunning {
		return "", nil
	}
	var revision servingv1.Revision
	err := u.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}, &revision)
	if apierrors.IsNotFound(err) {
		return "", nil // its pods go, too
	}
	if err != nil {
		return "", fmt.Errorf("what pod %s is owed: %w", name, err)
	}
	d, err := debt.Of(&pod, &revision)
	if err != nil {
		return "", err
	}
	switch inForce, _ := debt.InForce(&pod, d.Container); {
	case !d.Due.IsZero():
		return fmt.Sprintf("its limits are %v, and it is owed %v", d.Has, d.Owed), nil
	case d.Late:
		return fmt.Sprintf("its limits in force are %v, and it is owed %v", inForce, d.Owed), nil
	}
	return "", nil
}
