package stack

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

// VPAObjects is the file of upstream's definitions and roles, which
// loadtest/vpa builds on.
const VPAObjects = "vpa-upstream.yaml"

var (
	vpaModule     = build.Module{Path: "k8s.io/autoscaler/vertical-pod-autoscaler", Version: versions.VerticalPodAutoscaler}
	metricsModule = build.Module{Path: "sigs.k8s.io/metrics-server", Version: versions.MetricsServer}

	vpaUpstreams = []upstream{
		{vpaModule, []build.Binary{
			{Name: "vpa-recommender", Package: "pkg/recommender"},
			{Name: "vpa-updater", Package: "pkg/updater"},
		}},
		{metricsModule, []build.Binary{{Name: "metrics-server", Package: "cmd/metrics-server"}}},
	}
)

// vpaObjects returns the definitions and roles of the version that the binaries
// are built from. It leaves out upstream's Deployments, whose intervals are
// made for days.
func vpaObjects(ctx context.Context) ([]object, error) {
	autoscaler, err := build.Download(ctx, vpaModule.Path, vpaModule.Version)
	if err != nil {
		return nil, err
	}
	metrics, err := build.Download(ctx, metricsModule.Path, metricsModule.Version)
	if err != nil {
		return nil, err
	}
	objects, err := readObjects(
		filepath.Join(autoscaler.Dir, "deploy", "vpa-v1-crd-gen.yaml"),
		filepath.Join(autoscaler.Dir, "deploy", "vpa-rbac.yaml"),
		filepath.Join(metrics.Dir, "manifests", "base", "rbac.yaml"),
	)
	return withoutAdmission(objects), err
}

// withoutAdmission leaves out the objects for VPA's admission controller. It
// sets the resources of new pods, which in-place mode does not need: a function
// begins as its owner wrote it, as under every other policy.
func withoutAdmission(objects []object) []object {
	return slices.DeleteFunc(objects, func(o object) bool { return strings.Contains(o.GetName(), "vpa-admission-controller") })
}
