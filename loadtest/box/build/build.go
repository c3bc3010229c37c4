// Package build makes the box's binaries from Go modules.
//
// An upstream module is built as the requirement of a throwaway module, because Go installs
// no module that has replaces.
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
	// Root is the root of the repository. Only modules with Beside need it.
	Root string
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
	// Beside is the path, from the root of the repository, of the go.mod of a module that is built
	// as well. What both require is built in the later of the two versions, so that it is compiled
	// only once, except for what upstream replaces.
	Beside string
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
	gomod, err := b.throwaway(ctx, m)
	if err != nil {
		return fmt.Errorf("build %s@%s: %w", m.Path, m.Version, err)
	}
	for _, bin := range binaries {
		if err := Once(filepath.Join(b.Bin, bin.Name), m.inputs(bin, gomod), func() error { return b.module(ctx, m, gomod, bin) }); err != nil {
			return fmt.Errorf("build %s of %s@%s: %w", bin.Package, m.Path, m.Version, err)
		}
	}
	return nil
}

// inputs returns everything that goes into a binary of the module. Versions stand for the content
// of modules, which never changes.
func (m Module) inputs(bin Binary, gomod []byte) any {
	return struct {
		Go     string
		GoMod  string
		Binary Binary
		Args   []string
	}{runtime.Version(), string(gomod), bin, m.args("")}
}

// throwaway returns the go.mod of the module that m is built in.
func (b Builder) throwaway(ctx context.Context, m Module) ([]byte, error) {
	upstream, err := Download(ctx, m.Path, m.Version)
	if err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(upstream.GoMod)
	if err != nil {
		return nil, err
	}
	var beside []byte
	if m.Beside != "" {
		if beside, err = os.ReadFile(filepath.Join(b.Root, m.Beside)); err != nil {
			return nil, err
		}
	}
	return m.throwaway(gomod, beside)
}

func (b Builder) module(ctx context.Context, m Module, gomod []byte, bin Binary) error {
	dir, err := os.MkdirTemp("", "box-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), gomod, 0o644); err != nil {
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
	// Without information for debuggers, which "-w" leaves out anyway, compiling takes a tenth less time.
	args := []string{"build", "-trimpath", "-gcflags", "all=-dwarf=false", "-p", "2", "-ldflags", strings.Join(append([]string{"-s", "-w"}, o.LDFlags...), " "), "-o", out}
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
