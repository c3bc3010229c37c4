package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const rolloutPoll = time.Second

// mergePatch returns a merge patch of plain maps, which can always be written as JSON.
func mergePatch(fields map[string]any) client.Patch {
	data, err := json.Marshal(fields)
	utilruntime.Must(err)
	return client.RawPatch(types.MergePatchType, data)
}

// rollout is a new revision that is to come.
type rollout struct {
	service    types.NamespacedName
	generation int64
	change     *modeChange
}

// await waits until the revision is ready, fails or times out, and notes the result.
func (r *rollout) await(ctx context.Context, kube client.Client, timeout time.Duration) {
	err := wait.PollUntilContextTimeout(ctx, rolloutPoll, timeout, true, func(ctx context.Context) (bool, error) { return r.look(ctx, kube), nil })
	if err != nil {
		r.change.failed = true
		r.change.Result = fmt.Sprintf("its new revision is not ready after %v, and the last one keeps serving: look at `kubectl -n %s get revisions`", timeout, r.service.Namespace)
	}
}

// look returns true when there is nothing more to come.
func (r *rollout) look(ctx context.Context, kube client.Client) bool {
	var service servingv1.Service
	if err := kube.Get(ctx, r.service, &service); err != nil {
		return false // the API server may answer the next look
	}
	status := &service.Status
	if status.ObservedGeneration < r.generation || status.LatestCreatedRevisionName == "" {
		return false
	}
	if status.LatestReadyRevisionName == status.LatestCreatedRevisionName {
		r.change.Revision = status.LatestReadyRevisionName
		r.change.Result = fmt.Sprintf("revision %s is ready, and its requests have the mode", r.change.Revision)
		if !toLatest(&service) {
			r.change.failed = true
			r.change.Result = fmt.Sprintf("revision %s is ready, but the Service's spec.traffic sends it no requests", r.change.Revision)
		}
		return true
	}
	if c := status.GetCondition(servingv1.ServiceConditionConfigurationsReady); c.IsFalse() {
		r.change.failed = true
		r.change.Result = fmt.Sprintf("its new revision failed, and the last one keeps serving: %s", c.GetMessage())
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
