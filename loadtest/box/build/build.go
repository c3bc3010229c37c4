// Package build makes the box's binaries from Go modules.
//
// An upstream module is built as the only requirement of a throwaway module that
// carries upstream's own replaces, so that each binary gets exactly the dependencies
// that its maintainers tested, and none of another's.
package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Builder builds static binaries into the folder Bin. It skips a binary that was
// already built from the same inputs.
type Builder struct {
	Bin string
	// Arch is the architecture to build for, as Go names it; empty is this machine's.
	Arch string
	// Log takes one line per binary.
	Log func(format string, args ...any)
}

// Options are the settings of `go build` that change the result.
type Options struct {
	Tags []string
	// LDFlags go to the linker after "-s -w".
	LDFlags []string
}

// Module is an upstream module at one version.
type Module struct {
	Path    string
	Version string
	// Replace has lines of the form "old => new version". It takes the place of the
	// replaces in the module's own go.mod, for a module whose go.mod replaces by
	// folders or requires versions that were never published.
	Replace []string
	Options
}

// Binary is a main package, by its path relative to the module, and the name of its
// binary.
type Binary struct {
	Name    string
	Package string
}

// Module builds binaries of an upstream module.
func (b Builder) Module(ctx context.Context, m Module, binaries ...Binary) error {
	for _, bin := range binaries {
		if err := Once(filepath.Join(b.Bin, bin.Name), m.inputs(bin), func() error { return b.module(ctx, m, bin) }); err != nil {
			return fmt.Errorf("build %s of %s@%s: %w", bin.Package, m.Path, m.Version, err)
		}
	}
	return nil
}

// inputs returns everything that goes into a binary of the module. The module's
// version stands for its content, which never changes.
func (m Module) inputs(bin Binary) any {
	return struct {
		Go     string
		Module Module
		Binary Binary
		Args   []string
	}{runtime.Version(), m, bin, m.args("")}
}

func (b Builder) module(ctx context.Context, m Module, bin Binary) error {
	upstream, err := Download(ctx, m.Path, m.Version)
	if err != nil {
		return err
	}
	gomod, err := os.ReadFile(upstream.GoMod)
	if err != nil {
		return err
	}
	throwaway, err := m.throwaway(gomod)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "box-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), throwaway, 0o644); err != nil {
		return err
	}
	// The go.mod of the throwaway module lacks the indirect requirements.
	return b.build(ctx, dir, "-mod=mod", path.Join(m.Path, bin.Package), bin.Name, m.Options)
}

// Local builds binaries of the module in the folder dir. Go itself detects what
// changed.
func (b Builder) Local(ctx context.Context, dir string, o Options, binaries ...Binary) error {
	for _, bin := range binaries {
		if _, err := os.Stat(filepath.Join(dir, bin.Package)); err != nil {
			return fmt.Errorf("build %s: no package %s in %s", bin.Name, bin.Package, dir)
		}
		if err := b.build(ctx, dir, "-mod=readonly", "./"+strings.TrimPrefix(bin.Package, "./"), bin.Name, o); err != nil {
			return fmt.Errorf("build %s in %s: %w", bin.Package, dir, err)
		}
	}
	return nil
}

// build runs `go build` in the module at dir.
func (b Builder) build(ctx context.Context, dir, mod, pkg, name string, o Options) error {
	if err := os.MkdirAll(b.Bin, 0o755); err != nil {
		return err
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", append(o.args(filepath.Join(b.Bin, name)), mod, pkg)...)
	cmd.Dir = dir
	cmd.Env = environment()
	if b.Arch != "" {
		cmd.Env = append(cmd.Env, "GOARCH="+b.Arch)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, tail(out))
	}
	b.Log("%s: built in %.0f s", name, time.Since(start).Seconds())
	return nil
}

func (o Options) args(out string) []string {
	args := []string{"build", "-trimpath", "-p", "2", "-ldflags", strings.Join(append([]string{"-s", "-w"}, o.LDFlags...), " "), "-o", out}
	if len(o.Tags) > 0 {
		args = append(args, "-tags", strings.Join(o.Tags, ","))
	}
	return args
}

// environment makes a build depend on this machine's toolchain and on nothing else in
// the caller's environment.
func environment() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=-buildvcs=false", "GOOS=linux",
		"GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off")
}

// tail returns the last 20 lines of a failed command's output.
func tail(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
