package uninstall

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/kubectl/debt"
	"libra.dev/libra/resizer/actuate"
)

// atATime bounds how many of the cluster's pods or Revisions, of which there may be tens of thousands, the Job holds at a time.
const atATime = 500

// notWhole is a pod with limits that Libra set and that are not those of its Revision.
type notWhole struct {
	pod client.ObjectKey
	why string
}

// awaitWhole looks at all pods first and last, and in between only at those that were not whole.
func (u Uninstall) awaitWhole(ctx context.Context) error {
	var away []notWhole
	return u.await(ctx, func(ctx context.Context) (string, error) {
		var pods []client.ObjectKey
		for _, a := range away {
			pods = append(pods, a.pod)
		}
		left, err := u.lookAt(ctx, pods)
		if err == nil && len(left) == 0 {
			if pods, err = u.resized(ctx); err == nil {
				left, err = u.lookAt(ctx, pods)
			}
		}
		if err != nil {
			return "", err
		}
		away = left
		if len(away) == 0 {
			return "", nil
		}
		var why []string
		for _, a := range away {
			why = append(why, fmt.Sprintf("%s: %s", a.pod, a.why))
		}
		return fmt.Sprintf("%d pods have other limits than their Revisions; deleting such a pod helps, too: %s", len(away), strings.Join(why, "; ")), nil
	})
}

// resized returns the pods with limits that Libra set, even if they no longer take part: the resizer gives
// them back what they are owed.
func (u Uninstall) resized(ctx context.Context) (pods []client.ObjectKey, err error) {
	err = u.each(ctx, corev1.SchemeGroupVersion.WithKind("Pod"), func(o *metav1.PartialObjectMetadata) {
		if o.DeletionTimestamp == nil && actuate.Resized(o) {
			pods = append(pods, client.ObjectKeyFromObject(o))
		}
	}, client.HasLabels{serving.RevisionLabelKey})
	return pods, err
}

func (u Uninstall) lookAt(ctx context.Context, pods []client.ObjectKey) (away []notWhole, err error) {
	for _, pod := range pods {
		why, err := u.away(ctx, pod)
		if err != nil {
			return nil, err
		}
		if why != "" {
			away = append(away, notWhole{pod, why})
		}
	}
	return away, nil
}

// away says how far a running pod is from what it is owed; empty when it is at that. One that is about to end is left as
// it is.
func (u Uninstall) away(ctx context.Context, name client.ObjectKey) (string, error) {
	var pod corev1.Pod
	if err := u.Client.Get(ctx, name, &pod); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
		return "", nil
	}
	revision, err := actuate.RevisionOf(ctx, u.Client, &pod)
	if apierrors.IsNotFound(err) {
		return "", nil // then its pods go, too
	}
	if err != nil {
		return "", err
	}
	d, err := debt.Of(&pod, revision)
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
