//go:build e2e

// Package e2e tests Libra on the box: real requests through the real gateway,
// limits read from the real cgroups, and real processes stopped and killed.
package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/pkg/api"
)

const (
	functionsNamespace = "default"
	libraNamespace     = "libra-system"

	// boxCgroup is the folder of the box's node in every cgroup v1 hierarchy.
	boxCgroup = "/sys/fs/cgroup/%s/libra-box"

	// wholeWithin is how long after the last request, or the resizer's return,
	// a pod may be away from its user allocation.
	wholeWithin = 10 * time.Second
)

// function is one pod of a demo function and where its limits can be seen.
type function struct {
	name        string
	pod         string
	cgroup      string // of the user container, in the cpu hierarchy
	allocation  api.Resources
	containerID string
}

// find returns the only running pod of a demo function.
func find(ctx context.Context, t *testing.T, name string) function {
	t.Helper()
	pods, err := kube.CoreV1().Pods(functionsNamespace).List(ctx, metav1.ListOptions{LabelSelector: serving.ServiceLabelKey + "=" + name})
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
		t.Fatalf("%s has %d running pods; the demo keeps exactly 1", name, len(running))
	}
	pod := running[0]
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != api.UserContainer {
			continue
		}
		id := containerID(status)
		return function{
			name:        name,
			pod:         pod.Name,
			cgroup:      findCgroup(t, "cpu", id),
			allocation:  owed(ctx, t, pod),
			containerID: id,
		}
	}
	t.Fatalf("pod %s has no container %s", pod.Name, api.UserContainer)
	return function{}
}

func containerID(status corev1.ContainerStatus) string {
	_, id, _ := strings.Cut(status.ContainerID, "://")
	return id
}

// findCgroup returns the folder of a container in one v1 hierarchy.
func findCgroup(t *testing.T, hierarchy, containerID string) string {
	t.Helper()
	root := fmt.Sprintf(boxCgroup, hierarchy)
	found := ""
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == containerID {
			found = path
			return filepath.SkipAll
		}
		return nil
	})
	if err != nil || found == "" {
		t.Fatalf("no cgroup of container %s under %s (%v)", containerID, root, err)
	}
	return found
}

// quotaMilli is the CPU limit in force on the function's container, in millicores.
func (f function) quotaMilli() (int64, error) {
	quota, err := readInt(filepath.Join(f.cgroup, "cpu.cfs_quota_us"))
	if err != nil {
		return 0, err
	}
	period, err := readInt(filepath.Join(f.cgroup, "cpu.cfs_period_us"))
	if err != nil {
		return 0, err
	}
	return quota * 1000 / period, nil
}

func readInt(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// signal sends sig to every process of a container of the box.
func signal(t *testing.T, containerID string, sig syscall.Signal) {
	t.Helper()
	procs := filepath.Join(findCgroup(t, "pids", containerID), "cgroup.procs")
	data, err := os.ReadFile(procs)
	if err != nil {
		t.Fatalf("reading the processes of container %s: %v", containerID, err)
	}
	pids := strings.Fields(string(data))
	if len(pids) == 0 {
		t.Fatalf("container %s has no process to signal", containerID)
	}
	for _, field := range pids {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 1 {
			t.Fatalf("%s lists %q, not a process of this pid namespace", procs, field)
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatalf("signal %v to process %d of container %s: %v", sig, pid, containerID, err)
		}
	}
}

// owed is the user allocation of a pod: the limits of its Revision. The pod's own
// spec changes under resizes.
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

// waitWhole waits until the CPU quota of every function is its user allocation
// again, and fails once deadline has passed.
func waitWhole(t *testing.T, deadline time.Time, functions ...function) {
	t.Helper()
	for {
		var away []string
		for _, f := range functions {
			quota, err := f.quotaMilli()
			if err != nil {
				t.Fatalf("reading the quota of %s: %v", f.name, err)
			}
			if quota != f.allocation.CPUMilli {
				away = append(away, fmt.Sprintf("%s at %dm of %dm", f.name, quota, f.allocation.CPUMilli))
			}
		}
		if len(away) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not back at the user allocation in time: %s", strings.Join(away, ", "))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// restarts is how often the user and queue-proxy containers of the functions
// have been restarted.
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

// container returns the id of the only container of the only ready pod with a label
// in Libra's namespace.
func container(ctx context.Context, t *testing.T, selector string) string {
	t.Helper()
	var id string
	eventually(t, time.Minute, "a running pod "+selector, func() error {
		pods, err := kube.CoreV1().Pods(libraNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, status := range pod.Status.ContainerStatuses {
				if pod.DeletionTimestamp == nil && status.Ready && status.State.Running != nil {
					id = containerID(status)
					return nil
				}
			}
		}
		return fmt.Errorf("none of %d pods is ready", len(pods.Items))
	})
	return id
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
