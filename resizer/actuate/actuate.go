// Package actuate patches the limits of containers through the resize subresource of pods, and
// tells which limits were last changed that way.
//
// A patched limit is in force after 24 ms (95th percentile 37 ms), or after nearly a second
// (977 ms) when the kubelet has just handled the same pod, because it looks at a pod again only
// once a second. Everybody sees the limit, and the kubelet, the runtime and systemd all keep it. So
// patches are for lasting limits, which are ceilings of CPU and memory. Lent CPU is temporary, and
// the node agent writes it to cgroups, which takes 8 us (99th percentile 44 us).
//
// Requests are never patched: the scheduler must not see as free what will be asked back. And no
// limit is patched below what its owner configured except, for a moment and by one milli CPU, in a
// repair.
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

// FieldManager is the manager that a pod's managed fields name for Libra's resizes.
const FieldManager = "libra-resizer"

// SetLimits asks the API server for limits of one container of a pod, and returns when they are
// accepted. A resource that is zero in limits stays as it is. SetLimits stores the API server's
// answer in pod.
func SetLimits(ctx context.Context, kube client.SubResourceClientConstructor, pod *corev1.Pod, container string, limits api.Resources) error {
	patch, err := limitsPatch(pod.UID, container, limits)
	if err != nil {
		return err
	}
	err = kube.SubResource(resizeSubresource).Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(FieldManager))
	if err != nil {
		return fmt.Errorf("setting the limits of container %q of pod %s/%s to %v: %w", container, pod.Namespace, pod.Name, limits, err)
	}
	return nil
}

// limitsPatch names nothing but the limits, so that a strategic merge leaves requests, other
// containers and other resources alone. The UID makes the API server refuse the patch when the name
// belongs to another pod by now.
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
