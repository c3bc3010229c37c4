// Package stack is what the box runs on top of Kubernetes: Knative Serving, Istio or Kourier
// as its ingress, KServe, the image of Redis, and Libra's own images.
package stack

import (
	"cmp"
	"context"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/layout"
)

// Logf takes one line of progress.
type Logf func(format string, args ...any)

// builder makes everything for Build and Load, each thing once.
type builder struct {
	layout layout.Layout
	root   string // of the repository
	log    Logf
	// arch is the architecture to build for, as Go names it; empty is this machine's.
	arch string
	// pinned are the Debian packages under the predictor with all their dependencies; empty
	// means what Debian has now.
	pinned []deb
}

func (b *builder) dir(name string) string { return filepath.Join(b.layout.Cache, name) }

func (b *builder) compiler() build.Builder {
	return build.Builder{Bin: b.layout.Bin(""), Root: b.root, Arch: b.arch, Log: b.log}
}

// architecture is the architecture to build for.
func (b *builder) architecture() string { return cmp.Or(b.arch, runtime.GOARCH) }

// once is build.Once with a line of progress.
func (b *builder) once(path string, inputs any, make func() error) error {
	return build.Once(path, inputs, func() error {
		start := time.Now()
		if err := make(); err != nil {
			return err
		}
		rel, err := filepath.Rel(b.layout.Cache, path)
		if err != nil {
			return err
		}
		b.log("%s: made in %.0f s", rel, time.Since(start).Seconds())
		return nil
	})
}

// Build makes everything that is not Libra's own: binaries, image tars, manifests. It leaves
// alone whatever is there and would be the same.
func Build(ctx context.Context, l layout.Layout, root string, log Logf) error {
	b := &builder{layout: l, root: root, log: log}
	// Compiling keeps the processor busy, Debian and Python packages mostly the network.
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return buildBinaries(gctx, b.compiler(), upstreams...) })
	g.Go(func() error { return b.python(gctx) })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := b.images(ctx); err != nil {
		return err
	}
	return b.manifests(ctx)
}

// BuildImages makes what the load tests need on a cluster that is not the box: k6 and Libra's
// own images. A later Push finds most of its work done.
func BuildImages(ctx context.Context, l layout.Layout, root string, log Logf) error {
	b := &builder{layout: l, root: root, log: log}
	if err := buildBinaries(ctx, b.compiler(), k6); err != nil {
		return err
	}
	_, err := b.own(ctx)
	return err
}
