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

// extra is something that some tests need. A box has it only on request.
type extra struct {
	upstreams []upstream
	// local are binaries of a module of this repository, in the folder dir.
	local   []build.Binary
	dir     string
	options build.Options
	// objects returns upstream's objects, which go to file. It may be nil.
	objects func(context.Context) ([]object, error)
	file    string
}

var extras = map[string]extra{
	"vpa": {upstreams: vpaUpstreams, objects: vpaObjects, file: VPAObjects},
	// Libra's scheduler contains Kubernetes, which takes minutes to build.
	"scheduler": {
		local:   []build.Binary{{Name: "libra-scheduler", Package: "cmd/libra-scheduler"}},
		dir:     "activator-plugin/placement/scheduler",
		options: build.Options{LDFlags: []string{versions.KubernetesFlag}},
	},
}

// Extras returns the names that Load and Push accept.
func Extras() []string { return slices.Sorted(maps.Keys(extras)) }

// loaded builds Libra's own images and those of the named extras, and writes the extras'
// objects to files beside out.
func (b *builder) loaded(ctx context.Context, with []string, out string) ([]own, error) {
	if err := checkExtras(with); err != nil {
		return nil, err
	}
	images, err := b.own(ctx)
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
			return fmt.Errorf("--with %q: want one of %s", name, strings.Join(Extras(), ", "))
		}
	}
	return nil
}

// extra builds the images of e and writes its objects to dir.
func (b *builder) extra(ctx context.Context, e extra, dir string) ([]own, error) {
	if err := buildBinaries(ctx, b.compiler(), e.upstreams...); err != nil {
		return nil, err
	}
	if err := b.compiler().Local(ctx, filepath.Join(b.root, e.dir), e.options, e.local...); err != nil {
		return nil, err
	}
	binaries := slices.Clone(e.local)
	for _, u := range e.upstreams {
		binaries = append(binaries, u.binaries...)
	}
	var images []own
	for _, bin := range binaries {
		img, err := b.program(bin.Name)
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	if e.objects == nil {
		return images, nil
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
		doc, err := Document(o)
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
