package kubectl

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/settings"
)

// readSettings are the cluster's as a part of Libra has them that starts now.
func readSettings(ctx context.Context, kube client.Client) (settings.Settings, error) {
	var cm corev1.ConfigMap
	if err := kube.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: settings.ConfigMap}, &cm); apierrors.IsNotFound(err) {
		return settings.Default, nil
	} else if err != nil {
		return settings.Settings{}, fmt.Errorf("reading the settings: %w", err)
	}
	// What is not accepted stays as it was, which who looks at it later cannot know: the default is the best guess.
	parsed, _ := settings.Parse(cm.Data)
	return parsed, nil
}
