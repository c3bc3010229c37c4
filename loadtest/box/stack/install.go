package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"libra.dev/libra/loadtest/box/layout"
)

const (
	applyTimeout = time.Minute
	readyTimeout = 2 * time.Minute
)

// Install puts the stack on a node that has its images, and returns when all of
// it works. What Build rendered is applied by a field manager of the box's own;
// a second Install changes nothing but what others changed in the meantime.
func Install(ctx context.Context, l layout.Layout, config *rest.Config, log Logf) error {
	start := time.Now()
	a, err := newApplier(config)
	if err != nil {
		return err
	}
	certificate, err := a.webhookCertificate(ctx)
	if err != nil {
		return err
	}
	var all []object
	for _, phase := range phases {
		data, err := os.ReadFile(filepath.Join(l.Manifests(), phase))
		if err != nil {
			return fmt.Errorf("%w: build the stack first", err)
		}
		objects, err := parseObjects(data)
		if err != nil {
			return fmt.Errorf("%s: %w", phase, err)
		}
		if phase == phases[1] {
			objects = append(objects, certificate.secret())
		}
		certificate.trustedBy(objects)
		if err := a.applyAll(ctx, objects); err != nil {
			return err
		}
		all = append(all, objects...)
	}
	log("knative, istio, kserve: %d objects applied in %.0f s", len(all), time.Since(start).Seconds())

	if err := a.waitReady(ctx, readinessOf(all), readyTimeout, log); err != nil {
		return err
	}
	log("knative, istio, kserve: ready after %.0f s", time.Since(start).Seconds())
	return nil
}
