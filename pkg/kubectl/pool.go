package kubectl

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/settings"
)

const (
	metricsPort = "metrics"

	poolTimeout = 20 * time.Second
	// poolWindow is how long the pool is measured.
	poolWindow = 2 * time.Second
)

// poolDocument is what `pool` prints as JSON and YAML.
type poolDocument struct {
	Node  string `json:"node"`
	Agent string `json:"agent"`
	// Ready is since when the agent has been ready; nil when it is not.
	Ready       *metav1.Time `json:"ready,omitempty"`
	poolFigures `json:",inline"`
}

func newPool(o *options) *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "pool NODE",
		Short:   "Show what a node can lend and has lent",
		GroupID: groupSee,
		Long: `Show what a node can lend and has lent, from the metrics of its node agent. The command reads them twice, two seconds
apart, through a forwarded port. This needs the right to create pods/portforward in the namespace libra-node.`,
		Example: `  # as a table
  kubectl libra pool worker-1
  # as JSON
  kubectl libra pool worker-1 -o json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: o.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			kube, err := o.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), poolTimeout)
			defer cancel()
			fmt.Fprintf(o.ErrOut, "Asking the agent of node %s, which takes %v\n", args[0], poolWindow)
			d, err := pool(ctx, kube, o.forward, args[0], poolWindow)
			if err != nil {
				return err
			}
			return out.print(o.Out, d.document(time.Now()))
		},
	}
	out.addFlag(cmd)
	return cmd
}

func pool(ctx context.Context, kube client.Client, to forward, node string, window time.Duration) (*poolDocument, error) {
	agent, err := agentOf(ctx, kube, node)
	if err != nil {
		return nil, err
	}
	base, stop, err := to.named(ctx, agent, metricsPort)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of node %s: %w", node, err)
	}
	defer stop()
	first, err := scrape(ctx, base)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of pod %s/%s: %w", agent.Namespace, agent.Name, err)
	}
	began := time.Now()
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	second, err := scrape(ctx, base)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of pod %s/%s: %w", agent.Namespace, agent.Name, err)
	}
	d := &poolDocument{Node: node, Agent: agent.Name, poolFigures: figuresOf(first, second, time.Since(began))}
	for _, c := range agent.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			d.Ready = &c.LastTransitionTime
		}
	}
	return d, nil
}

// agentOf returns the running agent of the node.
func agentOf(ctx context.Context, kube client.Client, node string) (*corev1.Pod, error) {
	if err := kube.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no node %q: `kubectl get nodes` lists the nodes", node)
	} else if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("reading node %s: %w", node, err)
	}
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(settings.AgentNamespace), client.MatchingLabels{"app": settings.Agent}, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return nil, fmt.Errorf("reading pods of namespace %s: %w", settings.AgentNamespace, err)
	}
	for i := range pods.Items {
		if pods.Items[i].Status.Phase == corev1.PodRunning && pods.Items[i].DeletionTimestamp == nil {
			return &pods.Items[i], nil
		}
	}
	return nil, fmt.Errorf("no node agent runs on node %s: look at `kubectl -n %s get pods -o wide`; the agent needs Linux on amd64 or arm64", node, settings.AgentNamespace)
}

// document has a line for each figure, because a node has only one of each.
func (d *poolDocument) document(now time.Time) document {
	table := newTable("figure", "value", "+meaning")
	ready := "not ready"
	if d.Ready != nil {
		ready = "ready for " + duration.HumanDuration(now.Sub(d.Ready.Time))
	}
	of := func(milli float64, bytes float64) string {
		return fmt.Sprintf("%.2f cores, %.0f MiB", milli/1000, bytes/(1<<20))
	}
	open := "closed"
	if d.Open {
		open = "open"
	}
	addRow(table, "agent", d.Agent+", "+ready, "the agent reports the node to the pool once a second while it is ready")
	addRow(table, "pool", open, "it is closed until the agent has reported every container whole, and while Redis cannot be reached")
	addRow(table, "lendable", of(d.LendableMilliCores, d.LendableBytes), "the most that may be on loan")
	addRow(table, "in the pool", of(d.AvailableMilliCores, d.AvailableBytes), "what nobody has borrowed")
	addRow(table, "lent", of(d.LentMilliCores, 0), "CPU below user allocations; no memory limit goes below its allocation")
	addRow(table, "borrowed", of(d.BorrowedMilliCores, d.BorrowedBytes), "above user allocations")
	addRow(table, "pods in flight", fmt.Sprintf("%.0f with a weight, %.0f containers sampled", d.InFlight, d.Containers), "pods that have a request, of functions under the source node")
	addRow(table, "not whole", fmt.Sprintf("%.0f containers", d.Owing), "containers that the agent changed, and restores when it exits")
	addRow(table, "safeguards", fmt.Sprintf("%.0f since the agent started", d.Safeguards), "times that a lender got its CPU back at once")
	addRow(table, "clamp", fmt.Sprintf("%.1f s since the agent started, %.1f s of the last %v", d.ClampedSeconds, d.ClampedNow, poolWindow), "time that containers were held to their allocations because pods that did not opt in waited for CPU")
	out := document{kind: "Pool", data: d, tables: []*metav1.Table{table}}
	if d.Violations > 0 {
		out.notes = append(out.notes, fmt.Sprintf("An invariant did not hold %.0f times: see docs/alerts.md", d.Violations))
	}
	return out
}
