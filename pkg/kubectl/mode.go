package kubectl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

const (
	// modeDefault removes the mode or the bound that was set.
	modeDefault = "default"
	maxModeKey  = "max-mode"
	// revisionTimeout is how long new revisions may take to be ready, unless --timeout says otherwise.
	revisionTimeout = 2 * time.Minute
)

var modeNames = []string{string(api.ModeObserve), string(api.ModeLend), string(api.ModeFull), modeDefault}

type modeFlags struct {
	changeFlags
	all bool
}

func newMode(o *options) *cobra.Command {
	var f modeFlags
	cmd := &cobra.Command{
		Use:     "mode [SERVICE] observe|lend|full|default",
		Short:   "Set how far Libra goes with a Service, a namespace or all functions",
		GroupID: groupChange,
		Long: `Set how far Libra goes with a function: observe changes nothing, lend lets it have less while others need it, and
full also gives it more.

With a Service, the command sets the annotation libra.dev/mode on its template, which makes a new revision. default
removes it, so that the mode of the namespace or the cluster applies.

With -n and no Service, it sets the mode of the namespace in its HarvestPolicy, and creates one if there is none. That
takes effect at once and without a rollout, also for functions that come later. A function with the annotation keeps its
own mode. The mode of the namespace libra-system is the cluster's default, for namespaces that have no mode.

With --all, it sets the highest mode of all functions, max-mode in the ConfigMap config-libra, which takes effect at once
and without a rollout: kubectl libra mode --all observe is the emergency stop.`,
		Example: `  # one Service
  kubectl libra mode cart lend -n shop
  # all functions in a namespace that have no mode of their own
  kubectl libra mode full -n shop
  # all functions in the cluster without a mode of their own or of their namespace
  kubectl libra mode full -n libra-system
  # stop everything, at once
  kubectl libra mode --all observe`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch {
			case len(args) == 1 && !slices.Contains(modeNames, args[0]):
				return modeNames, cobra.ShellCompDirectiveNoFileComp
			case len(args) > 0:
				return nil, cobra.ShellCompDirectiveNoFileComp
			case f.all:
				return modeNames, cobra.ShellCompDirectiveNoFileComp
			}
			services, directive := o.completeServices(cmd, args, typed)
			return append(slices.Clone(modeNames), services...), directive
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			to := args[len(args)-1]
			if !slices.Contains(modeNames, to) {
				return fmt.Errorf("mode is %.64q, want %s", to, strings.Join(modeNames, ", "))
			}
			kube, err := o.client()
			if err != nil {
				return err
			}
			if f.all {
				if len(args) > 1 {
					return errors.New("--all is for all functions: leave SERVICE out")
				}
				return o.setMaxMode(cmd.Context(), kube, f, to)
			}
			if len(args) == 1 && !cmd.Flags().Changed("namespace") {
				return fmt.Errorf("no functions: name a Service, as in kubectl libra mode SERVICE %s, or use -n NAMESPACE for all its functions, or --all", to)
			}
			namespace, err := o.namespace()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return o.setPolicyMode(cmd.Context(), kube, f, namespace, to)
			}
			service, err := optedInService(cmd.Context(), kube, client.ObjectKey{Namespace: namespace, Name: args[0]})
			if err != nil {
				return err
			}
			return o.setServiceMode(cmd.Context(), kube, f, service, to)
		},
	}
	f.addFlags(cmd, revisionTimeout, "the new revision is ready")
	cmd.Flags().BoolVar(&f.all, "all", false, "set the highest mode of all functions, without a rollout")
	return cmd
}

// optedInService returns the named Service, or an error if it has not opted in.
func optedInService(ctx context.Context, kube client.Client, key client.ObjectKey) (*servingv1.Service, error) {
	service := &servingv1.Service{}
	if err := kube.Get(ctx, key, service); err != nil {
		return nil, fmt.Errorf("reading Service %s: %w", key, err)
	}
	if !api.OptedIn(service.Spec.Template.Labels) {
		return nil, fmt.Errorf("service %s has not opted in, so a mode has no effect on it: set the label %s: %q on its spec.template first", key, api.EnabledLabel, api.EnabledValue)
	}
	return service, nil
}

// modeChange is what became of a Service, and what `mode SERVICE` prints as JSON and YAML.
type modeChange struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Was       string `json:"was"`
	Mode      string `json:"mode"`
	// InForce is the mode that results, given the settings of the cluster and the namespace.
	InForce string `json:"inForce"`
	Changed bool   `json:"changed"`
	// Revision is the revision that has the mode; empty until it is ready.
	Revision string `json:"revision,omitempty"`
	Result   string `json:"result"`
	failed   bool
}

func (o *options) setServiceMode(ctx context.Context, kube client.Client, f modeFlags, service *servingv1.Service, to string) error {
	of, err := readSettings(ctx, kube, service.Namespace)
	modes := modesInForce{of, err}
	if err := modes.unlessForbidden(); err != nil {
		return err
	}
	c, pending := setMode(ctx, f.dryRun.client(kube), f.dryRun, service, to, modes)
	pending = pending && f.changes()
	if pending && f.timeout > 0 {
		fmt.Fprintf(o.ErrOut, "Waiting for the new revision, %v at most\n", f.timeout)
		c.await(ctx, kube, service.Generation, f.timeout)
	}
	table := newTable("namespace", "service", "was", "mode", "in force", "+revision", "result")
	addRow(table, c.Namespace, c.Service, c.Was, c.Mode, c.InForce, c.Revision, c.Result)
	d := document{kind: "ModeChange", data: c, tables: []*metav1.Table{table}, notes: modes.notes()}
	if pending {
		d.notes = append(d.notes, "Requests in pods of older revisions keep what they have until they end")
	}
	if err := f.print(o.Out, d); err != nil {
		return err
	}
	if c.failed {
		return fmt.Errorf("the mode %s is not in force for the Service: see RESULT", to)
	}
	return nil
}

// setMode patches one Service, and updates service to the API server's answer. pending says
// that a new revision is to come.
func setMode(ctx context.Context, kube client.Client, run dryRun, service *servingv1.Service, to string, modes modesInForce) (c *modeChange, pending bool) {
	was, set := service.Spec.Template.Annotations[api.ModeAnnotation]
	c = &modeChange{Namespace: service.Namespace, Service: service.Name, Was: was, Mode: to}
	if !set {
		c.Was = modeDefault
	}
	annotations := map[string]string{}
	var value any // nil removes the annotation
	if to != modeDefault {
		annotations[api.ModeAnnotation], value = to, to
	}
	c.InForce = modes.of(annotations)
	switch {
	case c.Was == to:
		c.Revision, c.Result = service.Status.LatestReadyRevisionName, "unchanged"
		return c, false
	case service.Spec.Template.Name != "":
		c.failed = true
		c.Result = fmt.Sprintf("refused: its template names the revision %s, and a change needs a new name; set the annotation %s and spec.template.metadata.name in one patch", service.Spec.Template.Name, api.ModeAnnotation)
		return c, false
	case run.sends():
		if err := kube.Patch(ctx, service, mergePatch(map[string]any{"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{api.ModeAnnotation: value}}}}}), client.FieldOwner(fieldOwner)); err != nil {
			c.failed, c.Result = true, fmt.Sprintf("failed: %v", err)
			return c, false
		}
	}
	c.Changed = run.changes()
	c.Result = "Knative makes a new revision" + run.suffix()
	if modes.bounds(to, c.InForce) {
		c.Result += fmt.Sprintf("; the cluster or the namespace allows it no more than %s", modes.settings.MaxMode)
	}
	return c, true
}

// maxModeDocument is what `mode --all` prints as JSON and YAML.
type maxModeDocument struct {
	Was     string `json:"was"`
	MaxMode string `json:"maxMode"`
	Changed bool   `json:"changed"`
	Result  string `json:"result"`
}

// setMaxMode bounds the mode of all functions.
func (o *options) setMaxMode(ctx context.Context, kube client.Client, f modeFlags, to string) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: settings.Namespace, Name: settings.ConfigMap}}
	err := kube.Get(ctx, client.ObjectKeyFromObject(cm), cm)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no ConfigMap %s/%s, so Libra is not installed, or changes nothing: `kubectl libra check` says what is missing", settings.Namespace, settings.ConfigMap)
	} else if err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	d := &maxModeDocument{Was: modeDefault, MaxMode: to}
	if was, ok := cm.Data[maxModeKey]; ok {
		d.Was = was
	}
	if d.Was == to {
		d.Result = "unchanged"
		return f.printMaxMode(o, d)
	}
	bound, err := boundOf(ctx, kube, to)
	if err != nil {
		return err
	}
	var value any
	if to != modeDefault {
		value = to
	}
	if f.sends() {
		err := f.dryRun.client(kube).Patch(ctx, cm, mergePatch(map[string]any{"data": map[string]any{maxModeKey: value}}), client.FieldOwner(fieldOwner))
		if err != nil {
			return fmt.Errorf("setting %s in ConfigMap %s/%s: %w", maxModeKey, settings.Namespace, settings.ConfigMap, err)
		}
	}
	d.Changed = f.changes()
	d.Result = "in force for requests that begin from now on, without a rollout"
	if to == string(api.ModeObserve) {
		d.Result += "; ceilings and weights are put back, and running requests keep what they borrowed until they end"
	}
	d.Result += bound + f.suffix()
	return f.printMaxMode(o, d)
}

// boundOf says what bounds modes to less than the settings would with a max-mode. Nothing is less than observe, which must be
// set whatever can be read.
func boundOf(ctx context.Context, kube client.Client, maxMode string) (string, error) {
	if maxMode == string(api.ModeObserve) {
		return "", nil
	}
	policy, err := readPolicy(ctx, kube, settings.Namespace)
	if err != nil {
		return "", err
	}
	asked := settings.Default
	if maxMode != modeDefault {
		asked.MaxMode = api.Mode(maxMode)
	}
	of, _ := asked.WithDefault(policy) // a refused policy means observe
	if of.MaxMode == asked.MaxMode {
		return "", nil
	}
	return fmt.Sprintf("; %s allows no more than %s", clustersPolicy, of.MaxMode), nil
}

func (f modeFlags) printMaxMode(o *options, d *maxModeDocument) error {
	table := newTable("setting", "was", "is", "result")
	addRow(table, maxModeKey, d.Was, d.MaxMode, d.Result)
	var notes []string
	if d.Changed {
		notes = append(notes, "To undo this: kubectl libra mode --all "+d.Was)
	}
	return f.print(o.Out, document{kind: "MaxMode", data: d, tables: []*metav1.Table{table}, notes: notes})
}
