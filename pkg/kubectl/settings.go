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

// readClusterSettings are those of config-libra and of the cluster's HarvestPolicy, as a part of Libra has them that
// starts now.
func readClusterSettings(ctx context.Context, kube client.Client) (settings.Settings, error) {
	of, err := readConfigMap(ctx, kube)
	if err != nil {
		return of, err
	}
	policy, err := readPolicy(ctx, kube, settings.Namespace)
	if err != nil {
		return of, err
	}
	of, _ = of.WithDefault(policy) // one that is refused is observed
	return of, nil
}

// readConfigMap are the settings of config-libra alone.
func readConfigMap(ctx context.Context, kube client.Client) (settings.Settings, error) {
	var cm corev1.ConfigMap
	of := settings.Absent
	switch err := kube.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: settings.ConfigMap}, &cm); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return of, fmt.Errorf("reading the settings: %w", err)
	default:
		// A value that is not accepted leaves what held before, which is not known here: the default is the best guess.
		of, _ = settings.Parse(cm.Data)
	}
	return of, nil
}

// readSettings are a namespace's.
func readSettings(ctx context.Context, kube client.Client, namespace string) (settings.Settings, error) {
	of, err := readClusterSettings(ctx, kube)
	if err != nil {
		return of, err
	}
	policy, err := readPolicy(ctx, kube, namespace)
	if err != nil {
		return of, err
	}
	of, _ = of.With(policy) // one that is refused is observed
	return of, nil
}

// readPolicy is what a namespace's HarvestPolicy says, which is nothing where it has none.
func readPolicy(ctx context.Context, kube client.Client, namespace string) (v1alpha1.HarvestPolicySpec, error) {
	var policy v1alpha1.HarvestPolicy
	err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.HarvestPolicyName}, &policy)
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return policy.Spec, fmt.Errorf("reading the HarvestPolicy of namespace %s: %w", namespace, err)
	}
	return policy.Spec, nil
}
