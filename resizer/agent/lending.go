package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
	"libra.dev/libra/resizer/ceiling"
)

const (
	// allocationsKept is more Revisions than have pods on one node.
	allocationsKept = 1024
	revisionTimeout = 5 * time.Second
)

// Lending says how far Libra goes with a pod, and what the source of its CPU is. It is the part of
// settings.Live that the agent needs.
type Lending interface {
	// Synced says whether the settings are the cluster's.
	Synced() bool
	// For returns the settings of a namespace's functions.
	For(namespace string) settings.Settings
	Source(namespace, node string) api.Source
	Settings() settings.Settings
	// OnChange registers f to be called after each change. f must not block.
	OnChange(f func())
}

// allocations finds what pods are owed in their Revisions, because resizes change a pod's own spec.
// A Revision's spec never changes, so each is read once.
type allocations struct {
	revisions client.Reader

	mu    sync.Mutex
	byUID map[types.UID]api.Resources
}

// of returns the user allocation of a pod. A resource for which the Revision sets no limit is zero.
func (a *allocations) of(ctx context.Context, pod *corev1.Pod) (api.Resources, error) {
	uid := types.UID(pod.Labels[serving.RevisionUID])
	a.mu.Lock()
	allocation, ok := a.byUID[uid]
	a.mu.Unlock()
	if ok {
		return allocation, nil
	}
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	revision, err := actuate.RevisionOf(ctx, a.revisions, pod)
	if err != nil {
		return api.Resources{}, err
	}
	allocation = api.FromList(revision.Spec.GetContainer().Resources.Limits)
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.byUID) >= allocationsKept {
		clear(a.byUID)
	}
	a.byUID[uid] = allocation
	return allocation, nil
}

// lend fills in what a pod is owed, where its CPU comes from, and whether its weight may change.
func (t *Tracker) lend(ctx context.Context, pod *corev1.Pod, info *podInfo) error {
	// Nothing changes for a pod that only observes, or before the settings are known, except that the
	// pod may still have, and use, more memory than it is owed.
	set := t.lending.For(pod.Namespace)
	mode := set.ModeOf(pod.Annotations)
	info.safeguardPercent, info.strict = set.SafeguardPercent, set.Protect == api.ProtectStrict
	observes := mode != api.ModeLend && mode != api.ModeFull
	if observes && !actuate.Resized(pod) {
		return nil
	}
	allocation, unknown := t.allocations.of(ctx, pod)
	if info.memoryOwed = allocation.MemoryBytes; observes {
		return unknown
	}
	info.allocation, info.borrows = allocation, mode == api.ModeFull
	if t.lending.Source(pod.Namespace, pod.Spec.NodeName) != api.SourceNode {
		return unknown
	}
	info.node = true
	if unknown != nil || mode != api.ModeFull {
		return unknown
	}
	var err error
	info.ceilingMilli, err = t.ceilingOf(ctx, pod, allocation.CPUMilli, set)
	return err
}

// ceilingOf returns the pod's ceiling: how much CPU it may use of what the node has idle. The
// controller tells the user about a bound that cannot be read.
func (t *Tracker) ceilingOf(ctx context.Context, pod *corev1.Pod, allocationMilli int64, set settings.Settings) (milli int64, err error) {
	var node corev1.Node
	if err := t.kube.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, &node); err != nil {
		return 0, fmt.Errorf("reading the allocatable CPU of node %s: %w", pod.Spec.NodeName, err)
	}
	milli, _ = ceiling.Of(pod, allocationMilli, node.Status.Allocatable.Cpu().MilliValue(), set)
	return milli, nil
}
