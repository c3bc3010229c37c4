package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"libra.dev/libra/loadtest/box/apt"
	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/versions"
)

// moduleDir is where the box's module lies in the repository.
const moduleDir = "loadtest/box"

// Binaries are the node's own binaries. Build or stack.Build makes each of them.
var Binaries = []string{"kubelite", "dns", "pause", "containerd", "containerd-shim-runc-v2", "ctr"}

// Build makes the parts of the node itself: Kubernetes, the DNS server and the
// pause image. It also installs the Debian packages that the machine lacks.
func Build(ctx context.Context, l layout.Layout, root string, log func(format string, args ...any)) error {
	if err := apt.Ensure(ctx, log, tools...); err != nil {
		return err
	}
	inits, err := runningInits()
	if err != nil {
		return err
	}
	if len(inits) == 0 { // a machine that runs a box is fit for one
		// Fail now, not after the build. Probing the kernel needs the tools.
		unfit, err := unfitMachine(ctx, l, 1)
		if err != nil {
			return err
		}
		if err := unfit.orNil(); err != nil {
			return err
		}
	}
	box := filepath.Join(root, moduleDir)
	b := build.Builder{Bin: l.Bin(""), Log: log}
	kubernetes := build.Options{LDFlags: []string{versions.KubernetesFlag}}
	for _, t := range []struct {
		name, dir, pkg string
		options        build.Options
	}{
		{"kubelite", box, "kubelite", kubernetes},
		{"dns", filepath.Join(box, "dns"), ".", build.Options{}},
		{"pause", box, "pause", build.Options{}},
	} {
		sources, err := build.Digest(filepath.Join(t.dir, "go.mod"), filepath.Join(t.dir, "go.sum"), filepath.Join(t.dir, t.pkg, "main.go"))
		if err != nil {
			return fmt.Errorf("read a source of the box: %w", err)
		}
		inputs := []any{runtime.Version(), sources, t.options}
		// Kubernetes takes minutes to build if Go's own cache was emptied.
		err = build.Once(l.Bin(t.name), inputs, func() error {
			return b.Local(ctx, t.dir, t.options, build.Binary{Name: t.name, Package: t.pkg})
		})
		if err != nil {
			return err
		}
	}
	return pauseImage(l)
}

func pauseImage(l layout.Layout) error {
	for _, dir := range []string{l.Images(), filepath.Join(l.Cache, "layers")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	layer, err := image.WriteLayer(filepath.Join(l.Cache, "layers", "pause.tar"), image.Copy{From: l.Bin("pause"), To: "/pause"})
	if err != nil {
		return err
	}
	img, err := image.New(image.Config{User: image.NonRoot, Entrypoint: []string{"/pause"}}, layer)
	if err != nil {
		return err
	}
	return img.WriteTar(filepath.Join(l.Images(), "pause.tar"), PauseImage)
}
