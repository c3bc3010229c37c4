package kubectl

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/kubectl/debt"
	"libra.dev/libra/resizer/actuate"
)

const inForcePoll = 500 * time.Millisecond

// owing is a pod that does not have what it is owed.
type owing struct {
	debt.Debt
	pod *corev1.Pod
	row *restored
}

// findDebts skips pods that Libra did not resize and pods that are whole. rows has the pods for which
// there is nothing to set: their limits are set but not in force, or their Revision is gone, so that
// what they are owed is not known.
func findDebts(ctx context.Context, kube client.Client, pods []corev1.Pod) (debts []*owing, rows []*restored, err error) {
	revisions := map[string]*servingv1.Revision{} // by UID
	for i := range pods {
		pod := &pods[i]
		if !actuate.Resized(pod) || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		uid := pod.Labels[serving.RevisionUID]
		row := &restored{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName}
		revision, known := revisions[uid]
		if !known {
			revision, err = actuate.RevisionOf(ctx, kube, pod)
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, nil, err
			}
			revisions[uid] = revision
		}
		if revision == nil {
			row.failed = true
			row.Result = fmt.Sprintf("its Revision %q is gone, so the limits that it is owed are not known: delete the pod", pod.Labels[serving.RevisionLabelKey])
			rows = append(rows, row)
			continue
		}
		d, err := debt.Of(pod, revision)
		if err != nil {
			return nil, nil, err
		}
		row.Container, row.Was, row.Owed = d.Container, d.Has.String(), d.Owed.String()
		switch {
		case !d.Due.IsZero():
			debts = append(debts, &owing{d, pod, row})
		case d.Late:
			row.failed, row.Result = true, "requested earlier, but not in force: "+whyPending(pod)
			rows = append(rows, row)
		}
	}
	return debts, rows, nil
}

func cpuAlone(r api.Resources) api.Resources { return api.Resources{CPUMilli: r.CPUMilli} }

func memoryAlone(r api.Resources) api.Resources { return api.Resources{MemoryBytes: r.MemoryBytes} }

// restore sets limits, and reports whether the API server accepted limits that are yet to come into force.
// It sets them in the resizer's name, so that the resizer knows them as its own, and does not leave the
// pod alone as another manager's.
func (d *owing) restore(ctx context.Context, kube client.Client, run dryRun, limits api.Resources) bool {
	if limits.IsZero() || d.row.failed {
		return false
	}
	if run.sends() {
		err := actuate.SetLimits(ctx, kube, d.pod, d.Container, limits)
		if apierrors.IsNotFound(err) {
			d.gone()
			return false
		}
		if err != nil {
			d.row.failed, d.row.Result = true, fmt.Sprintf("failed: %v", err)
			return false
		}
	}
	d.row.Result = "accepted" + run.suffix()
	return true
}

// awaitInForce waits until the kubelets have the limits in force or the timeout has passed,
// and notes each pod's result.
func awaitInForce(ctx context.Context, kube client.Client, debts []*owing, only func(api.Resources) api.Resources, timeout time.Duration) {
	waiting := debts
	// After the timeout, what is left says so.
	_ = wait.PollUntilContextTimeout(ctx, inForcePoll, timeout, true, func(ctx context.Context) (bool, error) {
		var left []*owing
		for _, d := range waiting {
			if !d.look(ctx, kube, only(d.Due)) {
				left = append(left, d)
			}
		}
		waiting = left
		return len(waiting) == 0, nil
	})
	for _, d := range waiting {
		d.row.failed = true
		d.row.Result = "accepted, but not in force: " + whyPending(d.pod)
	}
}

// look returns true when the limits are in force, or the pod is gone.
func (d *owing) look(ctx context.Context, kube client.Client, limits api.Resources) bool {
	err := kube.Get(ctx, client.ObjectKeyFromObject(d.pod), d.pod)
	if apierrors.IsNotFound(err) {
		d.gone()
		return true
	}
	if err != nil {
		return false // the API server may answer the next look
	}
	if is, running := debt.InForce(d.pod, d.Container); running && debt.Meets(is, limits) {
		d.row.Result = "in force"
		return true
	}
	return false
}

// gone notes that the pod no longer exists, and so is owed nothing.
func (d *owing) gone() {
	d.Due = api.Resources{}
	d.row.Result = "the pod is gone"
}

// whyPending returns what the kubelet says about a resize that it has not done.
func whyPending(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if (c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress) && c.Status == corev1.ConditionTrue && c.Message != "" {
			return fmt.Sprintf("the kubelet says %s: %s; it tries again when less is in use, or you can delete the pod", c.Reason, c.Message)
		}
	}
	return fmt.Sprintf("look at `kubectl -n %s describe pod %s`", pod.Namespace, pod.Name)
}
