//go:build e2e

// Package e2e tests Libra on the box: real requests through the real gateway,
// limits read from the real cgroups, and real processes stopped and killed.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const (
	functionsNamespace = "default"
	libraNamespace     = settings.Namespace
	agentNamespace     = settings.AgentNamespace

	// wholeWithin is how long after the last request, or the resizer's return,
	// a pod may be away from its user allocation.
	wholeWithin = 10 * time.Second
	// settledFor is how long the limits must stay there to count as settled.
	settledFor = time.Second
)

// function is one pod of a function, with the cgroups that show its limits.
type function struct {
	name        string
	namespace   string
	revision    string
	pod         string
	node        string
	containerID string
	cgroups     containers.Container
	allocation  api.Resources
}

// findAll returns the functions that opted in, by name.
func findAll(ctx context.Context, t *testing.T) map[string]function {
	t.Helper()
	all := map[string]function{}
	for _, name := range []string{"uploader", "dynamichtml", "compression", "pagerank"} {
		all[name] = find(ctx, t, name)
	}
	return all
}

// find returns the only running pod of a function.
func find(ctx context.Context, t *testing.T, name string) function {
	t.Helper()
	return findIn(ctx, t, functionsNamespace, name)
}

// findIn returns the only running pod of a function of a namespace.
func findIn(ctx context.Context, t *testing.T, namespace, name string) function {
	t.Helper()
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: serving.ServiceLabelKey + "=" + name})
	if err != nil {
		t.Fatalf("listing the pods of %s: %v", name, err)
	}
	var running []corev1.Pod
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
			running = append(running, pod)
		}
	}
	if len(running) != 1 {
		t.Fatalf("%s has %d running pods; its manifest keeps exactly 1", name, len(running))
	}
	return functionIn(ctx, t, name, running[0])
}

// functionIn returns the function whose pod this is.
func functionIn(ctx context.Context, t *testing.T, name string, pod corev1.Pod) function {
	t.Helper()
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != api.UserContainer {
			continue
		}
		id := containerID(status)
		return function{
			name:        name,
			namespace:   pod.Namespace,
			revision:    pod.Labels[serving.RevisionLabelKey],
			pod:         pod.Name,
			node:        pod.Spec.NodeName,
			containerID: id,
			cgroups:     findCgroups(t, id),
			allocation:  owed(ctx, t, pod),
		}
	}
	t.Fatalf("pod %s has no container %s", pod.Name, api.UserContainer)
	return function{}
}

func containerID(status corev1.ContainerStatus) string {
	_, id, _ := strings.Cut(status.ContainerID, "://")
	return id
}

// owed returns the user allocation of a pod: the limits of its Revision. Resizes change the pod's
// own spec.
func owed(ctx context.Context, t *testing.T, pod corev1.Pod) api.Resources {
	t.Helper()
	name := pod.Labels[serving.RevisionLabelKey]
	revision, err := knative.ServingV1().Revisions(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading revision %s of pod %s: %v", name, pod.Name, err)
	}
	for _, container := range revision.Spec.Containers {
		if len(revision.Spec.Containers) == 1 || len(container.Ports) > 0 {
			return api.FromList(container.Resources.Limits)
		}
	}
	t.Fatalf("revision %s has no user container", name)
	return api.Resources{}
}

// waitWhole waits until the limits of every function have been its user allocation for
// settledFor. It fails if they are not by the deadline.
func waitWhole(t *testing.T, deadline time.Time, functions ...function) {
	t.Helper()
	since := time.Time{}
	for {
		var away []string
		for _, f := range functions {
			limits, err := f.cgroups.Limits()
			if err != nil {
				t.Fatalf("reading the limits of %s: %v", f.name, err)
			}
			if limits != f.allocation {
				away = append(away, fmt.Sprintf("%s at %v of %v", f.name, limits, f.allocation))
			}
		}
		now := time.Now()
		switch {
		case len(away) > 0 && now.After(deadline):
			t.Fatalf("not back at the user allocation in time: %s", strings.Join(away, ", "))
		case len(away) > 0:
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= settledFor:
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}

// restarts returns how often the user and queue-proxy containers of the functions have been
// restarted.
func restarts(ctx context.Context, t *testing.T, functions ...function) int32 {
	t.Helper()
	var n int32
	for _, f := range functions {
		pod, err := kube.CoreV1().Pods(functionsNamespace).Get(ctx, f.pod, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("pod %s of %s is gone: %v", f.pod, f.name, err)
		}
		for _, status := range pod.Status.ContainerStatuses {
			n += status.RestartCount
		}
	}
	return n
}

// resizerSelector selects several pods, only one of which resizes.
const resizerSelector = "app=libra-resizer"

// container returns the ID of the container of Libra's ready pod with a label. For the resizer,
// that is the pod that holds the lease; for the agent, the pod on the functions' node.
func container(ctx context.Context, t *testing.T, selector string) string {
	t.Helper()
	var id string
	eventually(t, time.Minute, "a running pod "+selector, func() error {
		all, err := podsOfPart(ctx, selector)
		if err != nil {
			return err
		}
		if selector == resizerSelector {
			lease, err := kube.CoordinationV1().Leases(libraNamespace).Get(ctx, "libra-resizer", metav1.GetOptions{})
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(p corev1.Pod) bool { return p.Name != ptr.Deref(lease.Spec.HolderIdentity, "") })
		}
		if selector == agentSelector {
			all = slices.DeleteFunc(all, func(p corev1.Pod) bool { return p.Spec.NodeName != functionsNode })
		}
		for _, pod := range all {
			for _, status := range pod.Status.ContainerStatuses {
				if status.Ready && status.State.Running != nil {
					id = containerID(status)
					return nil
				}
			}
		}
		return fmt.Errorf("none of %d pods is ready", len(all))
	})
	return id
}

// containersOf returns the sorted IDs of the containers of all of Libra's pods with a label, once
// all are ready.
func containersOf(ctx context.Context, t *testing.T, selector string) []string {
	t.Helper()
	var ids []string
	eventually(t, time.Minute, "ready pods "+selector, func() error {
		all, err := podsOfPart(ctx, selector)
		if err != nil {
			return err
		}
		ids = nil
		for _, pod := range all {
			for _, status := range pod.Status.ContainerStatuses {
				if !status.Ready {
					return fmt.Errorf("%s of pod %s is not ready", status.Name, pod.Name)
				}
				ids = append(ids, containerID(status))
			}
		}
		if len(ids) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	slices.Sort(ids)
	return ids
}

// podsOfPart returns Libra's pods with a label, except those that are being deleted.
func podsOfPart(ctx context.Context, selector string) ([]corev1.Pod, error) {
	var all []corev1.Pod
	for _, namespace := range []string{libraNamespace, agentNamespace} {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return nil, err
		}
		all = append(all, pods.Items...)
	}
	return slices.DeleteFunc(all, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), nil
}

// eventually polls check until it succeeds, and fails with its last error at the limit.
func eventually(t *testing.T, limit time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v: %v", what, limit, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}
