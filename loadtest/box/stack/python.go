package stack

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"libra.dev/libra/loadtest/box/apt"
	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/versions"
)

// sitePackages is where Debian's Python looks for packages that pip installed.
const sitePackages = "/usr/local/lib/python" + versions.Python + "/dist-packages"

// recipe stands for how the layers of Python are made, which their stamps do not know otherwise.
// Change it whenever the same packages give a different layer.
const recipe = 2

// python is Debian's own Python, on this machine and in the image.
const python = "/usr/bin/python" + versions.Python

// pythonPackages are the Debian packages under the predictor.
var pythonPackages = []string{"python" + versions.Python, "libstdc++6", "libgomp1", "ca-certificates", "tzdata"}

func (b *builder) pythonLayer() string       { return b.dir("layers/python.tar") }
func (b *builder) sitePackagesLayer() string { return b.dir("layers/site-packages.tar") }

// python makes the two layers under the predictor: Debian with Python, and the packages in the
// predictor's lock file.
func (b *builder) python(ctx context.Context) error {
	venv, err := b.venv(ctx)
	if err != nil {
		return fmt.Errorf("make the virtual environment: %w", err)
	}
	packages := b.debianPackages()
	if err := b.once(b.pythonLayer(), []any{recipe, packages, b.pinned}, func() error {
		dir := b.dir("rootfs/python")
		defer os.RemoveAll(dir)
		if _, err := b.rootfs(ctx, dir, packages...); err != nil {
			return err
		}
		library := "/usr/lib/python" + versions.Python
		if err := compilePython(ctx, venv, filepath.Join(dir, library), library); err != nil {
			return err
		}
		_, err := image.WriteLayer(b.pythonLayer(), image.Copy{From: dir, To: "/"})
		return err
	}); err != nil {
		return fmt.Errorf("make the layer of Python: %w", err)
	}
	requirements, err := os.ReadFile(filepath.Join(b.root, predictorDir, "requirements.lock"))
	if err != nil {
		return fmt.Errorf("read the predictor's requirements: %w", err)
	}
	if err := b.once(b.sitePackagesLayer(), []any{recipe, string(requirements)}, func() error {
		dir := b.dir("rootfs/site-packages")
		defer os.RemoveAll(dir)
		if err := b.installPython(ctx, venv, dir, requirements); err != nil {
			return err
		}
		_, err := image.WriteLayer(b.sitePackagesLayer(), image.Copy{From: dir, To: sitePackages, Skip: []string{"tests"}})
		return err
	}); err != nil {
		return fmt.Errorf("make the layer of the predictor's requirements: %w", err)
	}
	return nil
}

// wheelMachines maps architectures to their names in wheels.
var wheelMachines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// leastGlibc and debianGlibc bound the minor versions of glibc 2 that wheels may be made for: the
// first that has such wheels, and the suite's.
const leastGlibc, debianGlibc = 17, 36

// withoutWheels maps, by architecture, requirements without a wheel for it to Debian's packages in
// their place. KServe requires a psutil before 6, and only later ones have a wheel for arm64.
var withoutWheels = map[string]map[string]string{"arm64": {"psutil": "python3-psutil"}}

// debianPackages returns the Debian packages under the predictor, with their versions if they are
// pinned.
func (b *builder) debianPackages() []string {
	if len(b.pinned) == 0 {
		return slices.Concat(pythonPackages, slices.Sorted(maps.Values(withoutWheels[b.architecture()])))
	}
	var packages []string
	for _, d := range b.pinned {
		packages = append(packages, d.Name+"="+d.Version)
	}
	return packages
}

// ofWheels returns the arguments that have pip install for a machine of arch with Debian, whatever
// this machine is. They allow only wheels, and no dependencies: requirements.lock names every
// package, because pip would resolve dependencies for this machine.
func ofWheels(arch string) []string {
	args := []string{"--only-binary", ":all:", "--no-deps", "--implementation", "cp", "--python-version", versions.Python}
	for minor := debianGlibc; minor >= leastGlibc; minor-- {
		args = append(args, "--platform", fmt.Sprintf("manylinux_2_%d_%s", minor, wheelMachines[arch]))
	}
	return append(args, "--platform", "manylinux2014_"+wheelMachines[arch])
}

// withWheels returns requirements without the lines of those that have no wheel.
func withWheels(arch string, requirements []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(requirements) {
		name, _, _ := bytes.Cut(line, []byte("=="))
		if _, lacks := withoutWheels[arch][string(name)]; !lacks {
			kept = append(kept, line...)
		}
	}
	return kept
}

// installPython installs requirements into dir, compiled to byte code.
func (b *builder) installPython(ctx context.Context, venv, dir string, requirements []byte) error {
	if err := emptyDir(dir); err != nil {
		return err
	}
	file := dir + ".txt"
	arch := b.architecture()
	if err := os.WriteFile(file, withWheels(arch, requirements), 0o644); err != nil {
		return err
	}
	defer os.Remove(file)
	// The scripts that pip writes begin with the path of the Python that runs it, which must be the
	// image's. The caller's environment must not choose other packages.
	args := append([]string{"PYTHONPATH=" + filepath.Join(venv, "lib", "python"+versions.Python, "site-packages"), "PYTHONHASHSEED=0", "PIP_FIND_LINKS=",
		python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", dir, "--requirement", file}, ofWheels(arch)...)
	if _, err := run(ctx, "", "env", args...); err != nil {
		return err
	}
	return compilePython(ctx, venv, dir, sitePackages)
}

// compilePython compiles the modules in dir, which will be at path in an image. A predictor that
// compiles at import starts 6 s later, and its read-only root could not keep the result. The byte
// code does not record when its source changed: an image has no such times. One process compiles
// all files in order, because how it writes a file's constants depends on what it compiled before.
func compilePython(ctx context.Context, venv, dir, path string) error {
	_, err := run(ctx, "", "env", "PYTHONHASHSEED=0", filepath.Join(venv, "bin", "python"), "-m", "compileall", "-qq",
		"--invalidation-mode", "unchecked-hash", "-s", dir, "-p", path, dir)
	return err
}

// venv makes a virtual environment of Debian's own Python. For byte code, any of the same minor
// version would do. But requirements differ between patch versions, and what pip installs must be
// right for the Python of the image.
func (b *builder) venv(ctx context.Context) (string, error) {
	dir := b.dir("venv")
	return dir, b.once(dir, python, func() error {
		if err := apt.Ensure(ctx, b.log,
			apt.Tool{Program: python, Package: "python" + versions.Python},
			// Debian has the parts that venv needs in a separate package.
			apt.Tool{Program: "/usr/lib/python" + versions.Python + "/ensurepip/__init__.py", Package: "python" + versions.Python + "-venv"},
		); err != nil {
			return err
		}
		_, err := run(ctx, "", python, "-m", "venv", "--clear", dir)
		return err
	})
}
