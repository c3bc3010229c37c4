package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/backoff"
	"libra.dev/libra/resizer/ceiling"
)

// livePatience is how long after the start the settings may take to be read. After that the
// controller goes on with settings that change nothing, because it has pods to restore, too.
const livePatience = 10 * time.Second

// Live has the cluster's current settings; a *settings.Live is one.
type Live interface {
	Synced() bool
	// For returns the settings of a namespace's functions.
	For(namespace string) settings.Settings
	Source(namespace, node string) api.Source
	OnChange(func())
}

// cpuCeiling is what the controller knows about a pod's ceiling under source node.
type cpuCeiling struct {
	milli int64 // target of the CPU limit in the spec; 0 under owners

	refusedUntil time.Time // not tried before this, because it was refused
	refusal      backoff.Delay

	badMaxCPU string // what is wrong with the pod's annotation; empty when nothing is
}

// refuse backs off from the ceiling for a while, longer each time. The node agent sees that the
// spec lacks it, and sets it in the cgroup.
func (c *cpuCeiling) refuse(now time.Time) { c.refusedUntil = now.Add(c.refusal.Next()) }

// cpuTarget returns the target of the CPU limit in the spec: the ceiling; while that is refused, as
// much of it as is accepted and in force; without a ceiling, what the pod is owed.
func (m *managedPod) cpuTarget(now time.Time) int64 {
	switch {
	case m.standing != takesPart || m.ceiling.milli == 0:
		return m.owed.CPUMilli
	case now.Before(m.ceiling.refusedUntil):
		return max(m.owed.CPUMilli, min(m.asked.CPUMilli, m.inForce.CPUMilli))
	}
	return m.ceiling.milli
}

// unread reports whether the settings may still arrive, so that the controller does not first undo
// what they say.
func (c *Controller) unread() bool {
	return !c.live.Synced() && c.clock.Since(c.started) < livePatience
}

// place finds the ceilings of the node's pods.
func (c *Controller) place(ctx context.Context, n *node) {
	c.measure(ctx, n)
	for _, m := range n.pods {
		before := m.ceiling.milli
		m.ceiling.milli = c.ceilingOf(ctx, n, m)
		if m.ceiling.milli != before {
			logf.FromContext(ctx).V(1).Info("the CPU ceiling of a pod has changed", "node", n.name, "pod", m.name,
				"function", m.function, "fromMilli", before, "toMilli", m.ceiling.milli)
		}
	}
}

// measure reads how much CPU pods may have of the node, and how much memory it has. If that fails,
// the last values stand: a node that is going away still has its pods.
func (c *Controller) measure(ctx context.Context, n *node) {
	var object corev1.Node
	if err := c.kube.Get(ctx, types.NamespacedName{Name: n.name}, &object); err != nil {
		logf.FromContext(ctx).V(1).Info("reading a Node failed", "node", n.name, "error", err.Error())
		return
	}
	n.allocatable, n.memory = object.Status.Allocatable.Cpu().MilliValue(), object.Status.Capacity.Memory().Value()
}

// ceilingOf returns the target of a pod's CPU limit in milli CPU, whatever is on loan. It is 0
// under source owners, and for a pod that has no ceiling.
func (c *Controller) ceilingOf(ctx context.Context, n *node, m *managedPod) int64 {
	if m.owed.CPUMilli == 0 || m.standing != takesPart || m.leftAlone != "" {
		return 0
	}
	set := c.live.For(m.pod.Namespace)
	if set.ModeOf(m.pod.Annotations) != api.ModeFull || c.live.Source(m.pod.Namespace, n.name) != api.SourceNode {
		m.ceiling.badMaxCPU = ""
		return 0
	}
	milli, err := ceiling.Of(m.pod, m.owed.CPUMilli, n.allocatable, set)
	if err == nil {
		m.ceiling.badMaxCPU = ""
	} else if m.ceiling.badMaxCPU != err.Error() {
		m.ceiling.badMaxCPU = err.Error()
		c.metrics.maxCPURefused(ctx)
		maxCPURefusedEvent(m.pod, err).record(c.recorder)
	}
	if !api.PodReady(m.pod) && m.asked.CPUMilli <= m.owed.CPUMilli {
		return m.owed.CPUMilli // no request waits for it yet
	}
	return milli
}

// keepSize returns the part of a Node that measure reads.
func keepSize(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{}
	kept.Name, kept.UID, kept.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	if cpu, ok := node.Status.Allocatable[corev1.ResourceCPU]; ok {
		kept.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: cpu}
	}
	if memory, ok := node.Status.Capacity[corev1.ResourceMemory]; ok {
		kept.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: memory}
	}
	return kept
}

// allocatableChanged passes only those events of Nodes that may change a ceiling. The pods' own
// events tell which pods a node has.
var allocatableChanged = predicate.Funcs{
	CreateFunc: func(crevent.CreateEvent) bool { return false },
	DeleteFunc: func(crevent.DeleteEvent) bool { return false },
	UpdateFunc: ceiling.MayChange,
}
