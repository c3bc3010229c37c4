package actuate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RevisionOf reads the Revision of a pod, which says what the pod is owed; resizes change the pod's own spec.
// The error is a NotFound when the Revision is gone, also when another has its name by now.
func RevisionOf(ctx context.Context, kube client.Reader, pod *corev1.Pod) (*servingv1.Revision, error) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}
	gone := apierrors.NewNotFound(servingv1.Resource("revisions"), key.Name)
	var revision servingv1.Revision
	err := error(gone)
	if key.Name != "" {
		err = kube.Get(ctx, key, &revision)
	}
	if uid := pod.Labels[serving.RevisionUID]; err == nil && string(revision.UID) != uid {
		err = fmt.Errorf("the Revision of that name has the UID %q, want %q: %w", revision.UID, uid, gone)
	}
	if err != nil {
		return nil, fmt.Errorf("reading Revision %s of pod %s: %w", key, pod.Name, err)
	}
	return &revision, nil
}
