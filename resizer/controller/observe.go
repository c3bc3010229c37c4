package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/actuate"
)

// observe brings n.pods up to date with the cache.
func (c *Controller) observe(ctx context.Context, n *node) error {
	var list corev1.PodList
	err := c.kube.List(ctx, &list, client.MatchingFields{nodeNameField: n.name}, client.MatchingLabels{api.EnabledLabel: api.EnabledValue})
	if err != nil {
		return fmt.Errorf("listing the opted-in pods of node %s: %w", n.name, err)
	}
	now := c.clock.Now()
	known := n.pods
	n.pods = make(map[string]*managedPod, len(list.Items))
	listed := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		pod := &list.Items[i]
		name := pod.Namespace + "/" + pod.Name
		listed[name] = true
		if done(pod) {
			continue
		}
		m, ok := known[name]
		if !ok || m.pod.UID != pod.UID {
			m = newManagedPod(name)
		}
		n.pods[name] = m
		if err := c.readRevision(ctx, pod, m); err != nil {
			logf.FromContext(ctx).V(1).Info("leaving a pod alone", "pod", name, "reason", err.Error())
			if m.strand(pod, now) {
				leftAloneEvent(pod, m.leftAlone).record(c.recorder)
			}
			continue
		}
		before := m.leftAlone
		m.observe(pod)
		m.unobserved = m.unobserved || c.live.For(pod.Namespace).ModeOf(pod.Annotations) != api.ModeObserve
		if m.leftAlone != "" && m.leftAlone != before {
			leftAloneEvent(pod, m.leftAlone).record(c.recorder)
		}
	}
	for name, m := range known {
		if !listed[name] && m.depart() {
			n.pods[name] = m
		}
	}
	return nil
}

// readRevision reads the user's container from the pod's Revision. The last one that was read
// stands when the Revision is gone before its pods, whether or not another has its name.
func (c *Controller) readRevision(ctx context.Context, pod *corev1.Pod, m *managedPod) error {
	revision, err := actuate.RevisionOf(ctx, c.kube, pod)
	if m.function != "" && apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m.function = client.ObjectKeyFromObject(revision).String()
	m.unreadSince = time.Time{}
	m.user = *revision.Spec.GetContainer()
	if m.user.Name == "" {
		m.user.Name = api.UserContainer
	}
	return nil
}

// notice draws conclusions from what the pool says, and from what the kubelet did with earlier
// resizes.
func (c *Controller) notice(ctx context.Context, n *node, now time.Time) {
	for _, m := range n.pods {
		if m.leftAlone != "" {
			continue
		}
		m.memory.expect(n.loans.memoryOf(m.name, m.owed.MemoryBytes, n.memory), m.asked.MemoryBytes, n.loans.blind(now), now)
		if b := n.loans.pods[m.name]; b.Borrowed.MemoryBytes > 0 {
			m.calls.trace = b.Trace
		} else if m.asked.MemoryBytes == m.owed.MemoryBytes {
			m.calls.trace = ""
		}
		if m.standing == departed {
			continue
		}
		if took, ok := m.tookEffect(now); ok {
			c.metrics.inForce(ctx, took)
		}
		switch {
		case !m.arrived():
		case m.asked.MemoryBytes <= m.owed.MemoryBytes:
			m.memory.keeping.Reset()
		case m.asked.MemoryBytes >= m.memory.refusedBytes:
			m.memory.refusal.Reset() // that less is in force says nothing about more
		}
		if m.arrived() && m.asked.CPUMilli == m.ceiling.milli {
			m.ceiling.refusal.Reset()
		}
		if m.pending.reason != "" && m.pending.reason != m.pending.told {
			pendingEvent(m.pod, m.pending.reason, m.pending.message).record(c.recorder)
			if m.asked.MemoryBytes > m.inForce.MemoryBytes {
				m.memory.refuse(m.asked.MemoryBytes, now)
			}
			if m.asked.CPUMilli > max(m.inForce.CPUMilli, m.owed.CPUMilli) {
				m.ceiling.refuse(now)
			}
		}
		m.pending.told = m.pending.reason
		if m.memory.overdue(m.asked.MemoryBytes, m.inForce.MemoryBytes, now) {
			memoryInUseEvent(m.pod).record(c.recorder)
		}
	}
}
