package actuate

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
)

// FieldManager is who a pod's managed fields say resized it.
const FieldManager = "libra-resizer"

// API patches the resize subresource of pods.
type API struct {
	kube client.Client
}

// NewAPI returns the API way of setting limits.
func NewAPI(kube client.Client) API { return API{kube} }

// Of returns the Actuator of one container of a pod. It stores in pod what the API
// server answers.
func (a API) Of(pod *corev1.Pod, container string) Actuator { return inAPI{a.kube, pod, container} }

type inAPI struct {
	kube      client.Client
	pod       *corev1.Pod
	container string
}

func (a inAPI) SetLimits(ctx context.Context, limits api.Resources) error {
	patch, err := limitsPatch(a.pod.UID, a.container, limits)
	if err != nil {
		return err
	}
	err = a.kube.SubResource("resize").Patch(ctx, a.pod, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(FieldManager))
	if err != nil {
		return fmt.Errorf("setting limits of %s/%s container %q to %v: %w", a.pod.Namespace, a.pod.Name, a.container, limits, err)
	}
	return nil
}

// limitsPatch names nothing but the limits, so that a strategic merge leaves
// requests, other containers and other resources alone. The UID makes the API
// server refuse it when the name belongs to another pod by now.
func limitsPatch(uid types.UID, container string, limits api.Resources) ([]byte, error) {
	type containerPatch struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	var patch struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Containers []containerPatch `json:"containers"`
		} `json:"spec"`
	}
	patch.Metadata.UID = uid
	patch.Spec.Containers = []containerPatch{{
		Name:      container,
		Resources: corev1.ResourceRequirements{Limits: limits.List()},
	}}
	return json.Marshal(patch)
}
