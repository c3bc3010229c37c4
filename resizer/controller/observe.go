package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
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
			m = newManagedPod()
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
		m.observe(pod, now)
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

// readRevision takes in what the pod's Revision says of the user's container. What
// it said stands when the Revision is gone before its pods.
func (c *Controller) readRevision(ctx context.Context, pod *corev1.Pod, m *managedPod) error {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[serving.RevisionLabelKey]}
	var revision servingv1.Revision
	if err := c.kube.Get(ctx, key, &revision); err != nil {
		if m.function != "" && apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Revision %s of pod %s: %w", key, pod.Name, err)
	}
	m.function = key.String()
	m.unreadSince = time.Time{}
	m.user = *revision.Spec.GetContainer()
	if m.user.Name == "" {
		m.user.Name = api.UserContainer
	}
	return nil
}

// read takes in the node's balances and whether it has a living agent. When the pool
// cannot be read, what was read last stands for one lease: for so long Redis keeps
// it too.
func (c *Controller) read(ctx context.Context, n *node) {
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	state, err := c.pools.Read(ctx, n.name)
	now := c.clock.Now()
	if err != nil {
		c.metrics.poolFailed(ctx, "read")
		log := logf.FromContext(ctx).WithValues("node", n.name)
		since := n.readAt
		if since.IsZero() {
			since = n.madeAt
		}
		if !n.lost && now.Sub(since) >= pool.LeaseTTL {
			n.lost, n.balances = true, nil
			c.hear(n, false)
			log.Error(err, "the pool could not be read for a lease; restoring all")
		} else {
			log.V(1).Info("reading the pool failed", "error", err.Error(), "restoringAll", n.lost)
		}
		return
	}
	if n.lost {
		logf.FromContext(ctx).Info("the pool can be read again", "node", n.name)
	}
	if state.Epoch != n.epoch {
		for _, m := range n.pods {
			m.dueVersion = state.Version // the agent has to look again, too
		}
	}
	n.readAt, n.lost, n.balances = now, false, state.Pods
	n.epoch, n.version, n.acted = state.Epoch, state.Version, state.Acted
	c.hear(n, state.Agent != "")
}

// notice draws conclusions from what the kubelet made of earlier resizes.
func (c *Controller) notice(ctx context.Context, n *node) {
	now := c.clock.Now()
	for name, m := range n.pods {
		if m.leftAlone != "" {
			continue
		}
		m.expect(n, n.balances[name], now)
		if m.departed {
			continue
		}
		if m.settled && m.above(m.asked) {
			m.refusal.Reset()
		}
		if m.arrived() && m.placed && m.asked.CPUMilli == m.ceiling {
			m.ceilingRefusal.Reset()
		}
		if took, ok := m.tookEffect(now); ok {
			c.metrics.inForce(ctx, took)
		}
		if m.pending != "" && m.pending != m.noticed {
			pendingEvent(m.pod, m.pending, m.pendingMessage).record(c.recorder)
			if m.above(m.asked) {
				m.refuse(now)
			}
			if m.placed && m.asked.CPUMilli > m.inForce.CPUMilli {
				m.refuseCeiling(now)
			}
		}
		m.noticed = m.pending
		if m.overdueMemory(now) {
			memoryInUseEvent(m.pod).record(c.recorder)
		}

		if m.belowOwed {
			c.metrics.below(ctx, m.function, now.Sub(n.reconciledAt))
		}
		due := m.due.Max(m.request).Min(m.owed)
		m.belowOwed = m.inForce.Min(due) != due
	}
	n.reconciledAt = now
}
