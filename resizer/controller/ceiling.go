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
	"libra.dev/libra/resizer/ceiling"
)

// livePatience is how long the settings may take to be read after the start. Then the
// controller goes on with what changes nothing: it has pods to restore, too.
const livePatience = 10 * time.Second

// Live are the cluster's settings as they are now; a *settings.Live is one.
type Live interface {
	Synced() bool
	Settings() settings.Settings
	Mode(annotations map[string]string) api.Mode
	Source(namespace, node string) api.Source
	OnChange(func())
}

// unread says that the settings may yet come, so that what they say is not undone first.
func (c *Controller) unread() bool {
	return !c.live.Synced() && c.clock.Since(c.started) < livePatience
}

// place finds the ceilings of the node's pods.
func (c *Controller) place(ctx context.Context, n *node) {
	c.readAllocatable(ctx, n)
	quotas, withheld := quotasOf(c.kube), 0
	for _, m := range n.pods {
		before := m.ceiling
		m.ceiling = c.ceilingOf(ctx, n, m, quotas)
		if m.countedBy != "" {
			withheld++
		}
		if m.ceiling != before {
			logf.FromContext(ctx).V(1).Info("the ceiling of a pod's CPU is another", "node", n.name, "pod", m.pod.Namespace+"/"+m.pod.Name,
				"function", m.function, "fromMilli", before, "toMilli", m.ceiling)
		}
	}
	c.metrics.withheld(n.name, withheld)
}

// readAllocatable takes in how much CPU pods may have of the node. What was read stands
// while it cannot be: a node that is going away is still its pods'.
func (c *Controller) readAllocatable(ctx context.Context, n *node) {
	var object corev1.Node
	if err := c.kube.Get(ctx, types.NamespacedName{Name: n.name}, &object); err != nil {
		logf.FromContext(ctx).V(1).Info("reading a Node failed", "node", n.name, "error", err.Error())
		return
	}
	n.allocatable = object.Status.Allocatable.Cpu().MilliValue()
}

// ceilingOf is the milli CPU that a pod's limit is to be, whatever is on loan; 0 under
// source owners, and of a pod that has no ceiling.
func (c *Controller) ceilingOf(ctx context.Context, n *node, m *managedPod, quotas *quotas) int64 {
	if m.owed.CPUMilli == 0 || m.leaving || m.leftAlone != "" && m.leftAlone != classFixed {
		m.countedBy = ""
		return 0
	}
	if c.live.Mode(m.pod.Annotations) != api.ModeFull || c.live.Source(m.pod.Namespace, n.name) != api.SourceNode {
		m.badMaxCPU, m.countedBy = "", ""
		return 0
	}
	milli, err := ceiling.Of(m.pod, m.owed.CPUMilli, n.allocatable, c.live.Settings().CPUReserveMilli)
	if err == nil {
		m.badMaxCPU = ""
	} else if m.badMaxCPU != err.Error() {
		m.badMaxCPU = err.Error()
		c.metrics.maxCPURefused(ctx)
		maxCPURefusedEvent(m.pod, err).record(c.recorder)
	}
	if !isReady(m.pod) && m.asked.CPUMilli <= m.owed.CPUMilli {
		return m.owed.CPUMilli // nobody waits for what it does yet
	}
	if m.leftAlone == classFixed {
		// Not even tried: a resize may not change the class.
		if milli > m.owed.CPUMilli && !m.classTold {
			m.classTold = true
			ceilingRefusedEvent(m.pod, m.user.Name, milli, m.asked.CPUMilli, classFixed).record(c.recorder)
		}
		return 0
	}
	if milli <= m.owed.CPUMilli {
		m.countedBy = ""
		return milli
	}
	return c.besideQuotas(ctx, n, m, milli, quotas)
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// rest is what the spec is to say while nothing is lent.
func (m *managedPod) rest() api.Resources {
	rest := m.owed
	rest.CPUMilli = max(rest.CPUMilli, m.ceiling)
	return rest
}

// raisesToCeiling says that a resize gives the pod more than its own because of its ceiling.
func (m *managedPod) raisesToCeiling(r resize) bool {
	return m.ceiling > 0 && r.direction != nudge && r.limits.CPUMilli > max(m.asked.Sub(m.bump).CPUMilli, m.owed.CPUMilli)
}

// movesCeiling says that a resize brings the pod's CPU to its ceiling, or back from it.
func (m *managedPod) movesCeiling(r resize) bool {
	return r.limits.CPUMilli != m.asked.CPUMilli && (m.ceiling > 0 || m.placed && r.limits.CPUMilli < m.asked.CPUMilli)
}

// attainable is what of the ceiling may be asked for now: what is accepted and in force
// already, while more was refused.
func (m *managedPod) attainable(now time.Time) int64 {
	if now.Before(m.ceilingUntil) {
		return max(m.owed.CPUMilli, min(m.asked.Sub(m.bump).CPUMilli, m.inForce.CPUMilli))
	}
	return m.ceiling
}

// refuseCeiling keeps the ceiling from being tried for a while, longer each time. The node
// agent sees that the spec does not have it, and sets it in the cgroup.
func (m *managedPod) refuseCeiling(now time.Time) {
	m.ceilingUntil = now.Add(m.ceilingRefusal.Next())
}

// keepAllocatable is how much CPU pods may have of a Node.
func keepAllocatable(node *corev1.Node) *corev1.Node {
	kept := &corev1.Node{}
	kept.Name, kept.UID, kept.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	if cpu, ok := node.Status.Allocatable[corev1.ResourceCPU]; ok {
		kept.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: cpu}
	}
	return kept
}

// allocatableChanged lets only those events of Nodes through that may change a ceiling.
// What pods a node has, their own events tell.
var allocatableChanged = predicate.Funcs{
	CreateFunc: func(crevent.CreateEvent) bool { return false },
	DeleteFunc: func(crevent.DeleteEvent) bool { return false },
	UpdateFunc: func(e crevent.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Node)
		after, is := e.ObjectNew.(*corev1.Node)
		return ok && is && before.Status.Allocatable.Cpu().Cmp(*after.Status.Allocatable.Cpu()) != 0
	},
}
