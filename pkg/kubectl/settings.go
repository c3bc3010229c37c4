package kubectl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

// readClusterSettings returns the settings of config-libra and of the cluster's HarvestPolicy, as a part of
// Libra that starts now has them.
func readClusterSettings(ctx context.Context, kube client.Client) (settings.Settings, error) {
	of, err := readConfigMap(ctx, kube)
	if err != nil {
		return of, err
	}
	policy, err := readPolicy(ctx, kube, settings.Namespace)
	if err != nil {
		return of, err
	}
	of, _ = of.WithDefault(policy) // a refused policy means observe
	return of, nil
}

// readConfigMap returns the settings of config-libra alone.
func readConfigMap(ctx context.Context, kube client.Client) (settings.Settings, error) {
	var cm corev1.ConfigMap
	of := settings.Absent
	switch err := kube.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: settings.ConfigMap}, &cm); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return of, fmt.Errorf("reading the settings: %w", err)
	default:
		// A refused value leaves the last one in force, which is not known here: the default is the best guess.
		of, _ = settings.Parse(cm.Data)
	}
	return of, nil
}

// modesInForce tells which modes result from settings that the user may be unable to read: who may change a mode need not
// be allowed to read all that bounds it.
type modesInForce struct {
	settings settings.Settings
	hidden   error // why they are not known
}

// notKnown stands for a mode that depends on settings that are not known.
const notKnown = "not known"

func (m modesInForce) of(annotations map[string]string) string {
	if m.hidden != nil {
		return notKnown
	}
	return string(m.settings.ModeOf(annotations))
}

// bounds reports whether a mode that was set is not the one that is in force, as far as is known.
func (m modesInForce) bounds(set, inForce string) bool {
	return m.hidden == nil && set != modeDefault && inForce != set
}

func (m modesInForce) notes() []string {
	if m.hidden == nil {
		return nil
	}
	return []string{"The mode in force is not known: " + m.hidden.Error()}
}

// unlessForbidden returns why the settings are not known, unless it is that the user may not read them.
func (m modesInForce) unlessForbidden() error {
	if apierrors.IsForbidden(m.hidden) {
		return nil
	}
	return m.hidden
}

// readSettings returns the settings of a namespace.
func readSettings(ctx context.Context, kube client.Client, namespace string) (settings.Settings, error) {
	of, err := readClusterSettings(ctx, kube)
	if err != nil {
		return of, err
	}
	policy, err := readPolicy(ctx, kube, namespace)
	if err != nil {
		return of, err
	}
	of, _ = of.With(policy) // a refused policy means observe
	return of, nil
}

// readPolicy returns the spec of a namespace's HarvestPolicy, which is empty if there is none.
func readPolicy(ctx context.Context, kube client.Client, namespace string) (v1alpha1.HarvestPolicySpec, error) {
	var policy v1alpha1.HarvestPolicy
	err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.HarvestPolicyName}, &policy)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return policy.Spec, fmt.Errorf("reading the HarvestPolicy of namespace %s: %w", namespace, err)
	}
	return policy.Spec, nil
}
