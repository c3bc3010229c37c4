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

// sitePackages is where Debian's Python looks for what pip installed.
const sitePackages = "/usr/local/lib/python" + versions.Python + "/dist-packages"

// recipe stands for how the layers of Python are made, of which their stamps know nothing else: it
// changes whenever the same packages come to give another layer.
const recipe = 2

// python is Debian's own, here and in the image.
const python = "/usr/bin/python" + versions.Python

// pythonPackages are the Debian packages under the predictor.
var pythonPackages = []string{"python" + versions.Python, "libstdc++6", "libgomp1", "ca-certificates", "tzdata"}

func (b *builder) pythonLayer() string       { return b.dir("layers/python.tar") }
func (b *builder) sitePackagesLayer() string { return b.dir("layers/site-packages.tar") }

// python makes the two layers under the predictor: Debian with Python, and the
// packages of its lock file.
func (b *builder) python(ctx context.Context, root string) error {
	venv, err := b.venv(ctx)
	if err != nil {
		return fmt.Errorf("virtual environment: %w", err)
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
		return fmt.Errorf("layer of Python: %w", err)
	}
	requirements, err := os.ReadFile(filepath.Join(root, predictorDir, "requirements.lock"))
	if err != nil {
		return fmt.Errorf("the predictor's requirements: %w", err)
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
		return fmt.Errorf("layer of the predictor's requirements: %w", err)
	}
	return nil
}

// wheelMachines are the names of architectures in those of wheels.
var wheelMachines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// leastGlibc and debianGlibc are the minor versions of glibc 2 that wheels may be made for: from
// the first that there are such wheels for to that of the suite.
const leastGlibc, debianGlibc = 17, 36

// withoutWheels are, by architecture, requirements that have no wheel for it, and Debian's packages
// in their place. KServe asks for a psutil before 6, and only later ones have a wheel for arm64.
var withoutWheels = map[string]map[string]string{"arm64": {"psutil": "python3-psutil"}}

// debianPackages are the Debian packages under the predictor, with their versions where they are
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

// ofWheels has pip install what a machine of arch with Debian is to run, whatever this machine is.
// It takes only what is built already. Each requirement is named, so that nothing has to be asked
// of the packages, which would answer for this machine.
func ofWheels(arch string) []string {
	args := []string{"--only-binary", ":all:", "--no-deps", "--implementation", "cp", "--python-version", versions.Python}
	for minor := debianGlibc; minor >= leastGlibc; minor-- {
		args = append(args, "--platform", fmt.Sprintf("manylinux_2_%d_%s", minor, wheelMachines[arch]))
	}
	return append(args, "--platform", "manylinux2014_"+wheelMachines[arch])
}

// withWheels are the lines of requirements but for those that have no wheel.
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
	// The scripts that pip writes begin with the path of the Python that runs it, and that is to be
	// the image's. Nor may a variable of the caller's choose other packages.
	args := append([]string{"PYTHONPATH=" + filepath.Join(venv, "lib", "python"+versions.Python, "site-packages"), "PYTHONHASHSEED=0", "PIP_FIND_LINKS=",
		python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", dir, "--requirement", file}, ofWheels(arch)...)
	if _, err := run(ctx, "", "env", args...); err != nil {
		return err
	}
	return compilePython(ctx, venv, dir, sitePackages)
}

// compilePython compiles the modules in dir, which will be at path in an
// image. A predictor that compiles as it imports is 6 s late, and nothing could
// keep the result on its read-only root. The files carry no time of their
// source: an image has none. One process compiles them all, in their order: what was compiled
// before has a part in how a file's constants are written.
func compilePython(ctx context.Context, venv, dir, path string) error {
	_, err := run(ctx, "", "env", "PYTHONHASHSEED=0", filepath.Join(venv, "bin", "python"), "-m", "compileall", "-qq",
		"--invalidation-mode", "unchecked-hash", "-s", dir, "-p", path, dir)
	return err
}

// venv is a virtual environment of Debian's own Python. Another one of the same
// minor version would do for byte code, but requirements differ between patch
// versions: what pip installs must be right for the Python of the image.
func (b *builder) venv(ctx context.Context) (string, error) {
	dir := b.dir("venv")
	return dir, b.once(dir, python, func() error {
		if err := apt.Ensure(ctx, b.log,
			apt.Tool{Program: python, Package: "python" + versions.Python},
			// Debian keeps what venv needs in a package apart.
			apt.Tool{Program: "/usr/lib/python" + versions.Python + "/ensurepip/__init__.py", Package: "python" + versions.Python + "-venv"},
		); err != nil {
			return err
		}
		_, err := run(ctx, "", python, "-m", "venv", "--clear", dir)
		return err
	})
}
