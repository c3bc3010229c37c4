package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"libra.dev/libra/pkg/api"
)

// Tracker keeps the agent's containers in step with the pods of its node.
type Tracker struct {
	kube       client.Reader
	cgroupRoot string
	containers *containers
}

// Register adds the tracker to a manager whose cache holds this node's opted-in
// pods.
func (t *Tracker) Register(mgr manager.Manager) error {
	return builder.ControllerManagedBy(mgr).Named("tracker").For(&corev1.Pod{}).Complete(t)
}

// Reconcile follows one pod.
func (t *Tracker) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	name := req.Namespace + "/" + req.Name
	known := t.containers.get(name)

	// 1. The pod is gone, or its container does not run: drop what we have.
	var pod corev1.Pod
	if err := t.kube.Get(ctx, req.NamespacedName, &pod); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading pod %s: %w", name, err)
	}
	id := userContainerID(&pod)
	if id == "" {
		t.containers.put(name, nil)
		return ctrl.Result{}, nil
	}

	// 2. It is the container that we have: leave it.
	if known != nil && known.id == id {
		return ctrl.Result{}, nil
	}

	// 3. It is new: find its cgroup, which it has by now.
	t.containers.put(name, nil)
	cgroup, err := openCgroup(t.cgroupRoot, id)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("opening the cgroup of pod %s: %w", name, err)
	}
	t.containers.put(name, &container{id: id, cgroup: cgroup})
	return ctrl.Result{}, nil
}

// userContainerID is the runtime's id of the user's container; empty when it does
// not run. Knative gives that container, whatever its name, the port user-port.
func userContainerID(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		serves := slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == servingv1.UserPortName })
		if !serves && c.Name != api.UserContainer {
			continue
		}
		for _, s := range pod.Status.ContainerStatuses {
			if s.Name == c.Name && s.State.Running != nil {
				_, id, _ := strings.Cut(s.ContainerID, "://")
				return id
			}
		}
	}
	return ""
}
