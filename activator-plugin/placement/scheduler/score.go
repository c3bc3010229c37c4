package scheduler

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api"
)

// PreScore skips pods that the plugin has nothing to say about, as if it were not there.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if c := cycleOf(state); c == nil || c.order == nil && !c.compares(nodes) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// compares says whether any of the nodes may have something of use to the pod.
func (c *cycle) compares(nodes []fwk.NodeInfo) bool {
	if c.role == donor {
		return slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return c.sourceOn(n.Node()) == api.SourceOwners })
	}
	return c.role == borrower
}

// sourceOn returns the source of what the pod would lend and borrow on a node. As in settings.Live, a label that cannot
// be read counts as none.
func (c *cycle) sourceOn(node *corev1.Node) api.Source {
	if own := api.Source(node.Labels[api.SourceLabel]); own == api.SourceOwners || own == api.SourceNode {
		return own
	}
	return c.source
}

// find returns the pod's role, and what else is known about the pod.
func (p *Plugin) find(pod *corev1.Pod, order *tapp.Order) (*cycle, outcome) {
	set := p.settings.For(pod.Namespace)
	c := &cycle{
		order: order, domain: set.DomainOf(pod.Namespace), source: p.settings.NamespaceSource(pod.Namespace), known: p.follower.now(),
	}
	if c.known == nil {
		return c, outcomeStale
	}
	owed := allocation(pod)
	need, known := p.follower.leanings.needOf(configurationOf(pod))
	if !known || owed <= 0 {
		return c, outcomeUnknown
	}
	c.role, c.milli = roleOf(need, owed, set.ModeOf(pod.Annotations))
	return c, [...]outcome{neither: outcomeNeither, borrower: outcomeBorrower, donor: outcomeDonor}[c.role]
}

// A score has in its upper bits how many ranks come after the node's, and in the rankShift lower bits how much CPU
// there is of use to the pod, in milli CPU.
const (
	rankShift = 40
	mostMilli = 1<<rankShift - 1
)

// Score implements fwk.ScorePlugin.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return 0, nil
	}
	milli := c.use(node.Node())
	if c.order == nil {
		return milli, nil
	}
	rank, _ := c.order.Rank(node.Node().Name)
	return int64(c.order.Ranks-1-rank)<<rankShift | milli, nil
}

// use returns how much of what the pod is there for is on a node.
func (c *cycle) use(node *corev1.Node) (milli int64) {
	if c.role == neither {
		return 0
	}
	r := c.known.nodes[node.Name]
	if r == nil {
		return 0
	}
	if c.sourceOn(node) == api.SourceOwners {
		if d := r.domains[c.domain]; d != nil && c.role == borrower {
			milli = d.surplus.Load()
		} else if d != nil {
			milli = d.lacks.Load()
		}
	} else if c.role == borrower {
		milli = r.idle.Load()
	}
	return min(max(0, milli), mostMilli)
}

// ScoreExtensions implements fwk.ScorePlugin.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore gives each rank that nodes have a band of its own within 0 to the highest score, and each node a place
// in its band by what there is of use to the pod. Less than the pod itself would borrow or lend does not reach the top
// of a band, so that a few milli CPU make no difference.
func (p *Plugin) NormalizeScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	var own int64
	if c := cycleOf(state); c != nil {
		own = c.milli
	}
	normalize(scores, own)
	return nil
}

func normalize(scores fwk.NodeScoreList, own int64) {
	if len(scores) == 0 {
		return
	}
	lowest, highest, most := scores[0].Score>>rankShift, scores[0].Score>>rankShift, max(own, 1)
	for i := range scores {
		rank := scores[i].Score >> rankShift
		lowest, highest, most = min(lowest, rank), max(highest, rank), max(most, scores[i].Score&mostMilli)
	}
	bands := highest - lowest + 1
	for i := range scores {
		band := scores[i].Score>>rankShift - lowest
		from, to := band*fwk.MaxScore/bands, (band+1)*fwk.MaxScore/bands
		if band < bands-1 {
			to--
		}
		// most is below 1<<40, so this is far below 1<<63.
		scores[i].Score = from + (to-from)*(scores[i].Score&mostMilli)/most
	}
}

// SignPod declares that pods of functions are the same to the plugin if they have the same namespace, labels, mode and
// CPU allocation, so that the scheduler may place several at once. Other pods are all the same.
func (p *Plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if !api.OptedIn(pod.Labels) {
		return nil, nil
	}
	return []fwk.SignFragment{{Key: "libra.dev/function()", Value: []any{
		p.orderOf(pod) != nil, pod.Namespace, pod.Labels, pod.Annotations[api.ModeAnnotation], allocation(pod),
	}}}, nil
}
