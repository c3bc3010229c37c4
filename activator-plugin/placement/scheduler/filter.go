package scheduler

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"libra.dev/libra/pkg/api"
)

// PreFilter skips pods that may go to any node. It is the one step that the scheduler runs on each attempt: it scores
// nodes only if more than one is left.
func (p *Plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if !api.OptedIn(pod.Labels) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	order := p.orderOf(pod)
	if order != nil && order.Refuses() {
		// The policy may change before another event has the pod tried again.
		p.waiting.add(pod)
		// It may also have changed before the pod was waiting.
		order = p.orderOf(pod)
	}
	c, outcome := p.find(pod, order)
	p.metrics.opinion(ctx, outcome, order != nil)
	state.Write(cycleKey, c)
	if order == nil || !order.Refuses() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	for _, n := range nodes {
		if _, goes := order.Rank(n.Node().Name); goes {
			return nil, nil
		}
	}
	p.metrics.unplaceable.Add(ctx, 1)
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("placement policy %s names no existing node", order.Policy))
}

// PreFilterExtensions implements fwk.PreFilterPlugin. Other pods make no difference.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter keeps the nodes that the policy may send requests to.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil || c.order == nil {
		return nil
	}
	if _, goes := c.order.Rank(node.Node().Name); goes {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) not named by placement policy %s", c.order.Policy))
}

// EventsToRegister returns the events that may make a policy name a node that it did not name before. An edit of the
// policy is not an event of the scheduler's.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{
		Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel | fwk.UpdateNodeCondition | fwk.UpdateNodeTaint,
	}}}, nil
}
