package kubectl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// restoreTimeout is how long the kubelets may take, unless --timeout says otherwise.
const restoreTimeout = 30 * time.Second

type restoreFlags struct {
	changeFlags
	scope
	node  string
	force bool
	// narrowed says that --namespace names the namespace, and not only the context.
	narrowed bool
}

func newRestore(o *options) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:     "restore [POD]",
		Short:   "Restore pods to the limits that their owners configured",
		GroupID: groupChange,
		Long: `Restore pods to the limits of their Revisions, through pods/resize, where Libra was the last to change them. The command
never changes requests, and leaves alone a limit that another manager set.

The resizer does this by itself when a function's mode becomes observe; use this command when the resizer does not run.
While the resizer runs and a function is in another mode, it would give the pod its ceiling again, so the command refuses
without --force. The kubelet lowers a memory limit only once less memory is in use; until then the command says so.
The node agent sets what it lends only in cgroups, and puts it back when it exits.`,
		Example: `  # show what there is to restore, and what the API server would say
  kubectl libra restore -A --dry-run=server
  # stop everything, then restore the pods on one node
  kubectl libra mode --all observe && kubectl libra restore --node worker-1`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			f.narrowed = cmd.Flags().Changed("namespace")
			if len(args) == 0 && !f.all && f.node == "" && !f.narrowed {
				return errors.New("no pods: name a POD, or use -n NAMESPACE, --node NODE or --all-namespaces")
			}
			kube, err := o.client()
			if err != nil {
				return err
			}
			pods, err := o.podsToRestore(cmd.Context(), kube, f, args)
			if err != nil {
				return err
			}
			return o.restore(cmd.Context(), kube, f, pods)
		},
	}
	f.addFlags(cmd, restoreTimeout, "the kubelets have applied the limits")
	f.scope.addFlag(cmd)
	cmd.Flags().StringVar(&f.node, "node", "", "restore the pods on this node, in the namespace that -n names or else in all")
	complete(cmd, "node", o.completeNodes)
	cmd.Flags().BoolVar(&f.force, "force", false, "restore even while the resizer runs, which may change the limits again")
	return cmd
}

// podsToRestore returns the named pod, or the pods of Knative that the flags select. They need not have the label
// that opts in any more: whoever removes it wants them restored all the more.
func (o *options) podsToRestore(ctx context.Context, kube client.Client, f restoreFlags, names []string) ([]corev1.Pod, error) {
	namespace, err := o.namespaceOf(f.scope)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		if f.all || f.node != "" {
			return nil, errors.New("POD is one pod of a namespace: leave --all-namespaces and --node out")
		}
		var pod corev1.Pod
		if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names[0]}, &pod); err != nil {
			return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, names[0], err)
		}
		return []corev1.Pod{pod}, nil
	}
	about := []client.ListOption{client.HasLabels{serving.RevisionLabelKey}}
	if f.node != "" {
		about = append(about, client.MatchingFields{"spec.nodeName": f.node})
	}
	if f.node == "" || f.narrowed {
		about = append(about, client.InNamespace(namespace))
	}
	var list corev1.PodList
	if err := kube.List(ctx, &list, about...); err != nil {
		return nil, fmt.Errorf("reading pods: %w", err)
	}
	return list.Items, nil
}

// restored is what became of one pod.
type restored struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node,omitempty"`
	Container string `json:"container,omitempty"`
	Was       string `json:"was,omitempty"`
	Owed      string `json:"owed,omitempty"`
	Result    string `json:"result"`
	failed    bool
}

// restoreDocument is what `restore` prints as JSON and YAML.
type restoreDocument struct {
	Pods []*restored `json:"pods"`
}

func (o *options) restore(ctx context.Context, kube client.Client, f restoreFlags, pods []corev1.Pod) error {
	debts, rows, err := findDebts(ctx, kube, pods)
	if err != nil {
		return err
	}
	if !f.force && f.changes() {
		if err := refuseWhileResized(ctx, kube, debts); err != nil {
			return err
		}
	}
	for _, d := range debts {
		rows = append(rows, d.row)
	}
	// CPU first, because a kubelet that delays a pod's memory delays its CPU, too.
	for _, only := range []func(api.Resources) api.Resources{cpuAlone, memoryAlone} {
		var sent []*owing
		for _, d := range debts {
			if d.restore(ctx, f.dryRun.client(kube), f.dryRun, only(d.Due)) {
				sent = append(sent, d)
			}
		}
		if len(sent) > 0 && f.changes() && f.timeout > 0 {
			fmt.Fprintf(o.ErrOut, "Waiting for the kubelets of %d pods, %v at most\n", len(sent), f.timeout)
			awaitInForce(ctx, kube, sent, only, f.timeout)
		}
	}
	table := newTable("namespace", "pod", "+node", "+container", "was", "owed", "result")
	failed := 0
	for _, r := range rows {
		addRow(table, r.Namespace, r.Pod, r.Node, r.Container, r.Was, r.Owed, r.Result)
		if r.failed {
			failed++
		}
	}
	d := document{kind: "Restore", data: &restoreDocument{orEmpty(rows)}, tables: []*metav1.Table{table}}
	if len(rows) == 0 {
		d.notes = append(d.notes, fmt.Sprintf("Nothing to restore: in %d pods of Knative, no limit that Libra set differs from the Revision's", len(pods)))
	}
	if err := f.print(o.Out, d); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d pods are not at the limits that they are owed: see RESULT", failed, len(rows))
	}
	return nil
}

// refuseWhileResized returns an error if the resizer would change again what is restored.
func refuseWhileResized(ctx context.Context, kube client.Client, debts []*owing) error {
	inForce := map[string]settings.Settings{}
	acting := 0
	var example *owing
	for _, d := range debts {
		of, read := inForce[d.pod.Namespace]
		if !read {
			var err error
			if of, err = readSettings(ctx, kube, d.pod.Namespace); err != nil {
				return err
			}
			inForce[d.pod.Namespace] = of
		}
		if of.ModeOf(d.pod.Annotations) != api.ModeObserve {
			acting++
			example = d
		}
	}
	if acting == 0 {
		return nil
	}
	var resizer appsv1.Deployment
	err := kube.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: settings.Resizer}, &resizer)
	if apierrors.IsNotFound(err) || err == nil && resizer.Status.ReadyReplicas == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding out whether the resizer runs (--force skips this): %w", err)
	}
	return fmt.Errorf("the resizer runs and acts on %d of the pods, such as %s/%s in the mode %s, so it would change their limits again: run `kubectl libra mode --all observe`, after which the resizer restores them by itself, or use --force",
		acting, example.pod.Namespace, example.pod.Name, inForce[example.pod.Namespace].ModeOf(example.pod.Annotations))
}
