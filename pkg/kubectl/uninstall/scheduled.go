package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/settings"
)

const (
	// scheduler is the name of Libra's scheduler in pods, and of its Deployment.
	scheduler = "libra-scheduler"

	// namedMost bounds how many objects of a kind an error names.
	namedMost = 10
)

// refuseScheduled returns an error while something names Libra's scheduler. The scheduler goes with its namespace, and
// nothing would place new pods that name it. If the scheduler is not there, or is already gone, there is no error,
// because a refusal would save nothing.
func (u Uninstall) refuseScheduled(ctx context.Context) error {
	if err := u.Client.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: scheduler}, &appsv1.Deployment{}); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading the scheduler: %w", err)
	}
	revisions, err := u.scheduledRevisions(ctx)
	if err != nil {
		return err
	}
	others, err := u.scheduledPods(ctx)
	if err != nil {
		return err
	}
	if len(revisions)+len(others) == 0 {
		return nil
	}
	refusal := fmt.Sprintf("nothing was changed: the scheduler %s would be removed with Libra, and new pods that name it would wait for it forever", scheduler)
	if len(revisions) > 0 {
		refusal += fmt.Sprintf(". Revisions (%d): %s. Take schedulerName out of the templates of their Services, and run this again when no traffic goes to these Revisions any more",
			len(revisions), first(revisions))
	}
	if len(others) > 0 {
		refusal += fmt.Sprintf(". Others (%d): %s. Take schedulerName out of their pods' templates, and run this again when no pod names it any more",
			len(others), first(others))
	}
	return errors.New(refusal)
}

// first returns the first of some names, and how many more there are.
func first(names []string) string {
	of := strings.Join(names[:min(namedMost, len(names))], ", ")
	if more := len(names) - namedMost; more > 0 {
		of += fmt.Sprintf(" and %d more", more)
	}
	return of
}

// scheduledRevisions returns the Revisions that name Libra's scheduler, whether or not they have opted in. It skips
// those that are not routed, because they get no new pods.
func (u Uninstall) scheduledRevisions(ctx context.Context) ([]string, error) {
	routed, err := labels.NewRequirement(serving.RoutingStateLabelKey, selection.NotIn, []string{string(servingv1.RoutingStateReserve)})
	if err != nil {
		return nil, err
	}
	var named []string
	for next := ""; ; {
		// In a list that was read before, a Revision would keep what it does not set from the one that was in its place.
		var page servingv1.RevisionList
		if err := u.Client.List(ctx, &page, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*routed)}, client.Limit(atATime), client.Continue(next)); err != nil {
			if meta.IsNoMatchError(err) {
				return nil, nil
			}
			return nil, fmt.Errorf("listing the Revisions that name the scheduler %s: %w", scheduler, err)
		}
		for _, r := range page.Items {
			if r.Spec.SchedulerName == scheduler {
				named = append(named, r.Namespace+"/"+r.Name)
			}
		}
		if next = page.Continue; next == "" {
			return named, nil
		}
	}
}

// scheduledPods returns the owners of other pods that name Libra's scheduler and have not ended, or the pods that have
// no owner. An owner without a pod now, such as a CronJob between two Jobs, is not among them.
func (u Uninstall) scheduledPods(ctx context.Context) ([]string, error) {
	noFunction, err := labels.NewRequirement(serving.RevisionLabelKey, selection.DoesNotExist, nil)
	if err != nil {
		return nil, err
	}
	var pods metav1.PartialObjectMetadataList
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := u.Client.List(ctx, &pods, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*noFunction)}, client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.schedulerName", scheduler),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}); err != nil {
		return nil, fmt.Errorf("listing the pods that name the scheduler %s: %w", scheduler, err)
	}
	var named []string
	for _, pod := range pods.Items {
		kind, name := "Pod", pod.Name
		if owner := metav1.GetControllerOf(&pod); owner != nil {
			kind, name = owner.Kind, owner.Name
		}
		named = append(named, fmt.Sprintf("%s %s/%s", kind, pod.Namespace, name))
	}
	slices.Sort(named)
	return slices.Compact(named), nil
}
