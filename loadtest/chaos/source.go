package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/settings"
)

var harvestPolicies = v1alpha1.GroupVersion.WithResource("harvestpolicies")

const (
	sourceKey = "source" // in the settings

	// foundAnnotation, on the settings, records the source from before a run, so that the
	// next run can restore what a killed one could not.
	foundAnnotation = "chaos.libra.dev/found"
)

// sourceSettings is the source that the settings name for the cluster, and for the
// functions' namespace. Empty means not set.
type sourceSettings struct {
	Config    string `json:"config"`
	Namespace string `json:"namespace"`
}

// foundSource returns the source from before this run, or from before a killed run.
func foundSource(config *corev1.ConfigMap, namespace *corev1.Namespace) (sourceSettings, error) {
	found := sourceSettings{Config: config.Data[sourceKey], Namespace: namespace.Labels[api.SourceLabel]}
	if noted, ok := config.Annotations[foundAnnotation]; ok {
		found = sourceSettings{}
		if err := json.Unmarshal([]byte(noted), &found); err != nil {
			return found, fmt.Errorf("chaos did not write the annotation %s of ConfigMap %s/%s, remove it: %w",
				foundAnnotation, settings.Namespace, settings.ConfigMap, err)
		}
	}
	return found, nil
}

// holdSource records the current source, and removes the namespace's label, which takes
// precedence over the settings. restore puts back what was there.
func (c *cluster) holdSource(ctx context.Context) (restore func(context.Context) error, err error) {
	node, err := c.Kube.CoreV1().Nodes().Get(ctx, c.Home, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if source, ok := node.Labels[api.SourceLabel]; ok {
		return nil, fmt.Errorf("node %s has the label %s=%s, which takes precedence over the source that chaos sets: remove it", node.Name, api.SourceLabel, source)
	}
	for _, namespace := range []string{settings.Namespace, rig.Namespace} {
		policy, err := c.Objects.Resource(harvestPolicies).Namespace(namespace).Get(ctx, v1alpha1.HarvestPolicyName, metav1.GetOptions{})
		if err == nil {
			return nil, fmt.Errorf("HarvestPolicy %s/%s takes precedence over the source that chaos sets: remove it", namespace, policy.GetName())
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	config, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	namespace, err := c.Kube.CoreV1().Namespaces().Get(ctx, rig.Namespace, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	found, err := foundSource(config, namespace)
	if err != nil {
		return nil, err
	}
	noted, err := json.Marshal(found)
	if err != nil {
		return nil, err
	}
	restore = func(ctx context.Context) error {
		// The note comes last, because this may be interrupted, too.
		return errors.Join(c.setSource(ctx, api.Source(found.Config)), c.labelSource(ctx, found.Namespace), c.noteFound(ctx, nil))
	}
	if err := c.noteFound(ctx, string(noted)); err != nil {
		return nil, err
	}
	return restore, c.labelSource(ctx, "")
}

// settings returns the cluster's settings. It fails in any mode but full, where there is
// nothing to break.
func (c *cluster) settings(ctx context.Context) (*corev1.ConfigMap, error) {
	config, err := c.Kube.CoreV1().ConfigMaps(settings.Namespace).Get(ctx, settings.ConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w; `make chaos` installs Libra", err)
	}
	parsed, err := settings.Parse(config.Data)
	if err != nil {
		return nil, err
	}
	if mode := parsed.ModeOf(nil); mode != api.ModeFull {
		return nil, fmt.Errorf("the mode in ConfigMap %s/%s is %s, not %s: `make chaos` sets it; remove a max-mode", settings.Namespace, settings.ConfigMap, mode, api.ModeFull)
	}
	return config, nil
}

// setSource sets the cluster's source; empty means the default.
func (c *cluster) setSource(ctx context.Context, source api.Source) error {
	return c.patchSettings(ctx, map[string]any{"data": map[string]any{sourceKey: orNone(string(source))}})
}

func (c *cluster) noteFound(ctx context.Context, noted any) error {
	return c.patchSettings(ctx, map[string]any{"metadata": map[string]any{"annotations": map[string]any{foundAnnotation: noted}}})
}

func (c *cluster) patchSettings(ctx context.Context, change map[string]any) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err := c.Kube.CoreV1().ConfigMaps(settings.Namespace).Patch(ctx, settings.ConfigMap, types.MergePatchType, patch(change), metav1.PatchOptions{})
	return err
}

// labelSource labels the functions' namespace; empty removes the label.
func (c *cluster) labelSource(ctx context.Context, source string) error {
	change := map[string]any{"metadata": map[string]any{"labels": map[string]any{api.SourceLabel: orNone(source)}}}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	_, err := c.Kube.CoreV1().Namespaces().Patch(ctx, rig.Namespace, types.MergePatchType, patch(change), metav1.PatchOptions{})
	return err
}

// patch encodes a merge patch of strings and numbers, which JSON can always represent.
func patch(change map[string]any) []byte {
	data, err := json.Marshal(change)
	if err != nil {
		panic(err)
	}
	return data
}

// orNone returns nil, by which a merge patch removes a field, for an empty string.
func orNone(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// other returns the source that a flip switches to.
func other(source api.Source) api.Source {
	if source == api.SourceNode {
		return api.SourceOwners
	}
	return api.SourceNode
}
