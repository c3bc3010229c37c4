package main

import (
	"context"
	"fmt"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// setMode makes a mode that of all functions that do not say their own.
func (d *demo) setMode(ctx context.Context, mode api.Mode) error {
	object := []string{"-n", settings.Namespace, "configmap", settings.ConfigMap}
	there, err := d.kubectl.exists(ctx, object...)
	if err != nil {
		return err
	}
	if !there {
		_, err = d.kubectl.run(ctx, "-n", settings.Namespace, "create", "configmap", settings.ConfigMap, fmt.Sprintf("--from-literal=mode=%s", mode))
		return err
	}
	_, err = d.kubectl.run(ctx, append([]string{"patch", "--type=merge", fmt.Sprintf(`--patch={"data":{"mode":%q}}`, mode)}, object...)...)
	return err
}
