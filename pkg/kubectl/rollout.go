package kubectl

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const rolloutPoll = time.Second

// await waits until the Service's new revision, of its template's generation, is ready, fails or times out, and notes the result.
func (c *modeChange) await(ctx context.Context, kube client.Client, generation int64, timeout time.Duration) {
	err := wait.PollUntilContextTimeout(ctx, rolloutPoll, timeout, true, func(ctx context.Context) (bool, error) { return c.look(ctx, kube, generation), nil })
	switch {
	case err == nil: // look has said what became of it
	case ctx.Err() != nil:
		c.failed = true
		c.Result = "changed, but the wait for its new revision was interrupted: look at `kubectl -n " + c.Namespace + " get revisions`"
	default:
		c.failed = true
		c.Result = fmt.Sprintf("its new revision is not ready after %v, and the last one keeps serving: look at `kubectl -n %s get revisions`", timeout, c.Namespace)
	}
}

// look returns true when there is nothing more to come.
func (c *modeChange) look(ctx context.Context, kube client.Client, generation int64) bool {
	var service servingv1.Service
	if err := kube.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Service}, &service); err != nil {
		return false // the API server may answer the next look
	}
	status := &service.Status
	if status.ObservedGeneration < generation || status.LatestCreatedRevisionName == "" {
		return false
	}
	condition := status.GetCondition(servingv1.ServiceConditionConfigurationsReady)
	if condition.IsFalse() {
		c.failed = true
		c.Result = fmt.Sprintf("its new revision failed, and the last one keeps serving: %s", condition.GetMessage())
		return true
	}
	// While the condition is unknown, and where no revision could be created, both names are still the last one's.
	if condition.IsTrue() && status.LatestReadyRevisionName == status.LatestCreatedRevisionName {
		c.Revision = status.LatestReadyRevisionName
		c.Result = fmt.Sprintf("revision %s is ready, and its requests have the mode", c.Revision)
		if !toLatest(&service) {
			c.failed = true
			c.Result = fmt.Sprintf("revision %s is ready, but the Service's spec.traffic sends it no requests", c.Revision)
		}
		return true
	}
	return false
}

// toLatest reports whether the newest revision gets requests.
func toLatest(service *servingv1.Service) bool {
	if len(service.Spec.Traffic) == 0 {
		return true
	}
	for _, t := range service.Spec.Traffic {
		named := t.RevisionName != "" && t.RevisionName != service.Status.LatestReadyRevisionName
		if !named && (t.Percent == nil || *t.Percent > 0) {
			return true
		}
	}
	return false
}
