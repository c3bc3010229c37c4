package stack

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

// extra is what one load test needs and no box has unless it is asked for.
type extra struct {
	upstreams []upstream
	objects   func(context.Context) ([]object, error)
	file      string // that the objects go to
}

var extras = map[string]extra{"vpa": {vpaUpstreams, vpaObjects, VPAObjects}}

// Extras are the names that Load and Push know.
func Extras() []string { return slices.Sorted(maps.Keys(extras)) }

// VPAObjects is the name of the file that holds what loadtest/vpa builds on:
// upstream's definitions and roles.
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

// vpaObjects are the definitions and roles of the version that the binaries are
// built from. Upstream's Deployments are not among them: their intervals are
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

// withoutAdmission leaves out what is for VPA's admission controller alone.
// It sets the resources of pods that come up, and in-place mode needs none: a
// function begins as its owner wrote it, as it does under every other policy.
func withoutAdmission(objects []object) []object {
	return slices.DeleteFunc(objects, func(o object) bool { return strings.Contains(o.GetName(), "vpa-admission-controller") })
}

// loaded builds Libra's own images and those of the extras named, and writes
// the extras' objects beside out.
func (b *builder) loaded(ctx context.Context, root string, with []string, out string) ([]own, error) {
	if err := checkExtras(with); err != nil {
		return nil, err
	}
	images, err := b.own(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(with))) {
		more, err := b.extra(ctx, extras[name], filepath.Dir(out))
		if err != nil {
			return nil, fmt.Errorf("--with %s: %w", name, err)
		}
		images = append(images, more...)
	}
	return images, nil
}

func checkExtras(with []string) error {
	for _, name := range with {
		if _, ok := extras[name]; !ok {
			return fmt.Errorf("--with %q: there is only %s", name, strings.Join(Extras(), ", "))
		}
	}
	return nil
}

// extra builds the images of e and writes its objects into dir.
func (b *builder) extra(ctx context.Context, e extra, dir string) ([]own, error) {
	if err := buildBinaries(ctx, b.compiler(), e.upstreams...); err != nil {
		return nil, err
	}
	var images []own
	for _, u := range e.upstreams {
		for _, bin := range u.binaries {
			img, err := b.program(bin.Name)
			if err != nil {
				return nil, err
			}
			images = append(images, img)
		}
	}
	objects, err := e.objects(ctx)
	if err != nil {
		return nil, err
	}
	return images, writeObjects(filepath.Join(dir, e.file), objects)
}

func writeObjects(path string, objects []object) error {
	var data []byte
	for _, o := range objects {
		doc, err := document(o)
		if err != nil {
			return err
		}
		data = append(data, doc...)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
