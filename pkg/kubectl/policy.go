package kubectl

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// policyDocument is what `mode -n` prints as JSON and YAML.
type policyDocument struct {
	Namespace string `json:"namespace"`
	Was       string `json:"was"`
	Mode      string `json:"mode"`
	// InForce is the mode that results, given the bounds of the namespace and the cluster.
	InForce string `json:"inForce"`
	Changed bool   `json:"changed"`
	Result  string `json:"result"`
	// Own are the Services that have a mode of their own, which takes precedence over the namespace's.
	Own []ownMode `json:"ownMode"`
	// functions is how many Services have opted in.
	functions int
	notes     []string
}

// ownMode is the mode of a Service that has the annotation.
type ownMode struct {
	Service string `json:"service"`
	Mode    string `json:"mode"`
	InForce string `json:"inForce"`
}

// setPolicyMode sets the mode in the HarvestPolicy of a namespace, and creates the policy if there is none.
func (o *options) setPolicyMode(ctx context.Context, kube client.Client, f modeFlags, namespace, to string) error {
	policy := &v1alpha1.HarvestPolicy{}
	err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.HarvestPolicyName}, policy)
	there := err == nil
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("the cluster does not know the kind HarvestPolicy, so Libra is not installed or is older than this plugin; `kubectl libra check` says what is missing: %w", err)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("reading the HarvestPolicy of namespace %s: %w", namespace, err)
	}
	d := &policyDocument{Namespace: namespace, Was: cmp.Or(string(policy.Spec.Mode), modeDefault), Mode: to, Own: []ownMode{}}
	if d.Was == to {
		d.Result = "unchanged"
	} else if err := f.writePolicyMode(ctx, kube, namespace, to, there); err != nil {
		return fmt.Errorf("setting the mode in the HarvestPolicy of namespace %s: %w", namespace, err)
	} else {
		d.Changed = f.changes()
		d.Result = "in force for requests that begin from now on, without a rollout" + f.suffix()
	}
	failed := d.look(ctx, kube, policy.Spec)
	if err := f.print(o.Out, d.document()); err != nil {
		return err
	}
	return failed
}

func (f modeFlags) writePolicyMode(ctx context.Context, kube client.Client, namespace, to string, there bool) error {
	if !f.sends() {
		return nil
	}
	kube = f.dryRun.client(kube)
	policy := &v1alpha1.HarvestPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.HarvestPolicyName}}
	if !there {
		policy.Spec.Mode = v1alpha1.Mode(to)
		return kube.Create(ctx, policy, client.FieldOwner(fieldOwner))
	}
	var value any // nil removes it
	if to != modeDefault {
		value = to
	}
	return kube.Patch(ctx, policy, mergePatch(map[string]any{"spec": map[string]any{"mode": value}}), client.FieldOwner(fieldOwner))
}

// look finds the mode that results, and the Services that have their own.
func (d *policyDocument) look(ctx context.Context, kube client.Client, spec v1alpha1.HarvestPolicySpec) error {
	spec.Mode = ""
	if d.Mode != modeDefault {
		spec.Mode = v1alpha1.Mode(d.Mode)
	}
	before, with := readClusterSettings, settings.Settings.With
	if d.isDefault() {
		before, with = readConfigMap, settings.Settings.WithDefault
	}
	of, err := before(ctx, kube)
	of, _ = with(of, spec) // a refused policy means observe
	modes := modesInForce{of, err}
	d.InForce, d.notes = modes.of(nil), modes.notes()
	if modes.bounds(d.Mode, d.InForce) {
		d.Result += fmt.Sprintf("; the cluster or the namespace allows functions no more than %s", of.MaxMode)
	}
	var services servingv1.ServiceList
	if err := kube.List(ctx, &services, client.InNamespace(d.Namespace)); err != nil {
		return fmt.Errorf("reading Services of namespace %s: %w", d.Namespace, err)
	}
	for _, s := range services.Items {
		if !api.OptedIn(s.Spec.Template.Labels) {
			continue
		}
		d.functions++
		if own, ok := s.Spec.Template.Annotations[api.ModeAnnotation]; ok {
			d.Own = append(d.Own, ownMode{s.Name, own, modes.of(s.Spec.Template.Annotations)})
		}
	}
	return modes.unlessForbidden()
}

// isDefault reports whether the namespace's policy is the cluster's default, which is not for
// the functions of one namespace.
func (d *policyDocument) isDefault() bool { return d.Namespace == settings.Namespace }

func (d *policyDocument) document() document {
	changed := newTable("namespace", "was", "mode", "in force", "result")
	addRow(changed, d.Namespace, d.Was, d.Mode, d.InForce, d.Result)
	own := newTable("service", "its own mode", "in force")
	for _, s := range d.Own {
		addRow(own, s.Service, s.Mode, s.InForce)
	}
	out := document{kind: "PolicyMode", data: d, tables: []*metav1.Table{changed, own}, notes: d.notes}
	switch {
	case d.isDefault():
		out.notes = append(out.notes, "This is the cluster's default: a namespace's own HarvestPolicy, and the annotation "+api.ModeAnnotation+" of a function, take precedence over it")
	case d.functions == 0:
		out.notes = append(out.notes, fmt.Sprintf("No Service in the namespace has opted in yet: to opt one in, set the label %s: %q on its spec.template", api.EnabledLabel, api.EnabledValue))
	case len(d.Own) > 0:
		out.notes = append(out.notes, fmt.Sprintf("%d of %d functions have the annotation %s, which takes precedence over the namespace's mode. `kubectl libra mode SERVICE default -n %s` removes it",
			len(d.Own), d.functions, api.ModeAnnotation, d.Namespace))
	}
	if d.Changed {
		out.notes = append(out.notes, fmt.Sprintf("To undo this: kubectl libra mode %s -n %s", d.Was, d.Namespace))
	}
	return out
}
