//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"knative.dev/serving/pkg/apis/serving"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/ceiling"
)

// ceilingWithin is how long a pod may be away from its ceiling or, once it has none, from its user allocation. A refused ceiling is retried
// within it.
const ceilingWithin = time.Minute

// Under source node a ready pod's CPU limit is its ceiling, in its spec and in its cgroup. Under owners, and where the settings do not let
// any function go so far, it is what the owner configured. Where a quota on CPU limits has the API server refuse the ceiling, an Event says
// so, and the pod gets its ceiling in the cgroup alone.
func TestCeilingUnderSourceNode(t *testing.T) {
	ctx := t.Context()
	namespace := newNamespace(ctx, t, "ceilings", api.SourceNode)
	deployed := deployCopyIn(ctx, t, namespace, "compression", "ceiling", map[string]string{api.ModeAnnotation: string(api.ModeFull)})
	f := findIn(ctx, t, namespace, deployed.Labels[serving.ServiceLabelKey])
	pod := podOf(ctx, t, namespace, f)
	requests := userContainerOf(t, pod).Resources.Requests
	most := ceilingOf(ctx, t, pod, f.allocation.CPUMilli)
	if most <= f.allocation.CPUMilli {
		t.Fatalf("the ceiling of %s is %dm, no more than its allocation of %v: the box has too little CPU for this test", f.pod, most, f.allocation)
	}
	waitCPU(ctx, t, namespace, f, most)

	// One edit of the settings is enough, whatever the annotation says.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		setSetting(ctx, t, "max-mode", "null")
	})
	setSetting(ctx, t, "max-mode", `"observe"`)
	waitCPU(ctx, t, namespace, f, f.allocation.CPUMilli)
	setSetting(ctx, t, "max-mode", "null")
	waitCPU(ctx, t, namespace, f, most)

	// And so is a HarvestPolicy of the namespace.
	objects := objectClient(t)
	policy := &v1alpha1.HarvestPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.HarvestPolicyName},
		Spec:       v1alpha1.HarvestPolicySpec{MaxMode: v1alpha1.Mode(api.ModeObserve)},
	}
	if err := objects.Create(ctx, policy); err != nil {
		t.Fatal(err)
	}
	waitCPU(ctx, t, namespace, f, f.allocation.CPUMilli)
	between := f.allocation.CPUMilli + (most-f.allocation.CPUMilli)/2
	// An update would conflict with the status that the resizer writes meanwhile.
	before := policy.DeepCopy()
	policy.Spec = v1alpha1.HarvestPolicySpec{MaxCPU: resource.NewMilliQuantity(between, resource.DecimalSI)}
	if err := objects.Patch(ctx, policy, ctrlclient.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	waitCPU(ctx, t, namespace, f, between)
	if err := objects.Delete(ctx, policy); err != nil {
		t.Fatal(err)
	}
	waitCPU(ctx, t, namespace, f, most)

	// And the cluster's default, whose status tells what it did.
	all := &v1alpha1.HarvestPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: v1alpha1.HarvestPolicyName},
		Spec:       v1alpha1.HarvestPolicySpec{CPUReserve: resource.NewMilliQuantity(allocatableOf(ctx, t, pod)-between, resource.DecimalSI)},
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := objects.Delete(ctx, all); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("removing the cluster's default: %v", err)
		}
	})
	if err := objects.Create(ctx, all); err != nil {
		t.Fatal(err)
	}
	waitCPU(ctx, t, namespace, f, between)
	eventually(t, ceilingWithin, "status of the cluster's default", func() error {
		if err := objects.Get(ctx, ctrlclient.ObjectKeyFromObject(all), all); err != nil {
			return err
		}
		s := all.Status
		if s.ObservedGeneration != all.Generation || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAccepted) || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionInForce) || s.Functions < 1 || s.Pods < 1 {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	if err := objects.Delete(ctx, all); err != nil {
		t.Fatal(err)
	}
	waitCPU(ctx, t, namespace, f, most)

	label(ctx, t, namespace, api.SourceOwners)
	waitCPU(ctx, t, namespace, f, f.allocation.CPUMilli)

	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "roomy"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsCPU: resource.MustParse("100")}}}
	quotas := kube.CoreV1().ResourceQuotas(namespace)
	if _, err := quotas.Create(ctx, quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ceilingWithin, "status of the ResourceQuota", func() error {
		got, err := quotas.Get(ctx, quota.Name, metav1.GetOptions{})
		if err == nil && got.Status.Used == nil {
			err = fmt.Errorf("its status is %v", got.Status)
		}
		return err
	})
	label(ctx, t, namespace, api.SourceNode)
	eventually(t, ceilingWithin, "Event of the refusal", func() error {
		events, err := kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == "LibraCeilingRefused" && strings.Contains(event.Message, quota.Name) && strings.Contains(event.Message, "must specify limits.cpu") {
				t.Log(event.Message)
				return nil
			}
		}
		return fmt.Errorf("none of %d Events is of it", len(events.Items))
	})
	if got := cpuOf(t, podOf(ctx, t, namespace, f)); got != f.allocation.CPUMilli {
		t.Errorf("limits.cpu of %s is %dm where a quota refuses its ceiling, want %v", f.pod, got, f.allocation)
	}
	eventually(t, ceilingWithin, "ceiling in the cgroup alone", func() error { return cgroupAt(f, most) })

	if err := quotas.Delete(ctx, quota.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitCPU(ctx, t, namespace, f, most)
	if got := userContainerOf(t, podOf(ctx, t, namespace, f)).Resources.Requests; !got.Cpu().Equal(*requests.Cpu()) || !got.Memory().Equal(*requests.Memory()) {
		t.Errorf("requests of %s are %v by now, want %v", f.pod, got, requests)
	}
}

// newNamespace creates a namespace with its own source, and deletes it at the end of the test.
func newNamespace(ctx context.Context, t *testing.T, prefix string, source api.Source) string {
	t.Helper()
	namespaces := kube.CoreV1().Namespaces()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: prefix + "-" + rand.String(5), Labels: map[string]string{api.SourceLabel: string(source)}}}
	// Registered before the creation, whose answer may be lost.
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := namespaces.Delete(ctx, namespace.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("removing the namespace %s: %v", namespace.Name, err)
		}
	})
	if _, err := namespaces.Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the namespace %s: %v", namespace.Name, err)
	}
	return namespace.Name
}

// label gives a namespace another source.
func label(ctx context.Context, t *testing.T, namespace string, source api.Source) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{api.SourceLabel: string(source)}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("labelling the namespace %s: %v", namespace, err)
	}
}

// setSetting changes one of the cluster's settings, to a value in JSON; null is the default.
func setSetting(ctx context.Context, t *testing.T, setting, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"data": {%q: %s}}`, setting, value)
	if _, err := kube.CoreV1().ConfigMaps(settings.Namespace).Patch(ctx, settings.ConfigMap, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Errorf("setting %s to %s: %v", setting, value, err)
	}
}

// allocatableOf returns the allocatable CPU of a pod's Node, in milli CPU.
func allocatableOf(ctx context.Context, t *testing.T, pod *corev1.Pod) int64 {
	t.Helper()
	node, err := kube.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Status.Allocatable.Cpu().MilliValue()
}

// ceilingOf returns the ceiling of a pod by its Node and the settings.
func ceilingOf(ctx context.Context, t *testing.T, pod *corev1.Pod, allocationMilli int64) int64 {
	t.Helper()
	node, err := kube.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if source := node.Labels[api.SourceLabel]; source != "" {
		t.Fatalf("Node %s has the source %s, which comes before that of a namespace", node.Name, source)
	}
	now := settings.Default
	cm, err := kube.CoreV1().ConfigMaps(settings.Namespace).Get(ctx, settings.ConfigMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		t.Fatal(err)
	default:
		if now, err = settings.Parse(cm.Data); err != nil {
			t.Fatal(err)
		}
	}
	milli, err := ceiling.Of(pod, allocationMilli, node.Status.Allocatable.Cpu().MilliValue(), now)
	if err != nil {
		t.Fatal(err)
	}
	return milli
}

// waitCPU waits until a CPU limit is in the spec and in the cgroup of a function.
func waitCPU(ctx context.Context, t *testing.T, namespace string, f function, milli int64) {
	t.Helper()
	eventually(t, ceilingWithin, fmt.Sprintf("limits.cpu of %dm", milli), func() error {
		pod, err := kube.CoreV1().Pods(namespace).Get(ctx, f.pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := cpuOf(t, pod); got != milli {
			return fmt.Errorf("the spec says %dm", got)
		}
		return cgroupAt(f, milli)
	})
}

func cgroupAt(f function, milli int64) error {
	limits, err := f.cgroups.Limits()
	if err == nil && limits.CPUMilli != milli {
		err = fmt.Errorf("the cgroup has %dm", limits.CPUMilli)
	}
	return err
}

func podOf(ctx context.Context, t *testing.T, namespace string, f function) *corev1.Pod {
	t.Helper()
	pod, err := kube.CoreV1().Pods(namespace).Get(ctx, f.pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func userContainerOf(t *testing.T, pod *corev1.Pod) corev1.Container {
	t.Helper()
	for _, c := range pod.Spec.Containers {
		if c.Name == api.UserContainer {
			return c
		}
	}
	t.Fatalf("pod %s has no container %s", pod.Name, api.UserContainer)
	return corev1.Container{}
}

// cpuOf returns the CPU limit in a pod's spec, in milli CPU.
func cpuOf(t *testing.T, pod *corev1.Pod) int64 {
	t.Helper()
	return api.FromList(userContainerOf(t, pod).Resources.Limits).CPUMilli
}
