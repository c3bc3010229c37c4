package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/versions"
)

// sitePackages is where Debian's Python looks for what pip installed.
const sitePackages = "/usr/local/lib/python" + versions.Python + "/dist-packages"

// pythonPackages are the Debian packages under the predictor.
var pythonPackages = []string{"python" + versions.Python, "libstdc++6", "libgomp1", "ca-certificates", "tzdata"}

func (b *builder) pythonLayer() string       { return b.dir("layers/python.tar") }
func (b *builder) sitePackagesLayer() string { return b.dir("layers/site-packages.tar") }

// python makes the two layers under the predictor: Debian with Python, and the
// packages of its lock file.
func (b *builder) python(ctx context.Context, root string) error {
	venv := b.dir("venv")
	if err := b.once(b.pythonLayer(), pythonPackages, func() error {
		dir := b.dir("rootfs/python")
		defer os.RemoveAll(dir)
		if err := rootfs(ctx, dir, pythonPackages...); err != nil {
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
	requirements, err := pythonRequirements(root)
	if err != nil {
		return err
	}
	if err := b.once(b.sitePackagesLayer(), string(requirements), func() error {
		dir := b.dir("rootfs/site-packages")
		defer os.RemoveAll(dir)
		if err := installPython(ctx, dir, venv, requirements); err != nil {
			return err
		}
		_, err := image.WriteLayer(b.sitePackagesLayer(), image.Copy{From: dir, To: sitePackages, Skip: []string{"tests"}})
		return err
	}); err != nil {
		return fmt.Errorf("layer of the predictor's requirements: %w", err)
	}
	return nil
}

// pythonRequirements is the content of the predictor's lock file.
func pythonRequirements(root string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(root, "predictor", "requirements.lock"))
	if os.IsNotExist(err) {
		return fmt.Appendf(nil, "kserve==%s\nxgboost-cpu==%s\n", versions.KServePython, versions.XGBoostCPU), nil
	}
	return data, err
}

// installPython installs requirements into dir, compiled to byte code.
func installPython(ctx context.Context, dir, venv string, requirements []byte) error {
	pip, err := pip(ctx, venv)
	if err != nil {
		return err
	}
	if err := emptyDir(dir); err != nil {
		return err
	}
	file := dir + ".txt"
	if err := os.WriteFile(file, requirements, 0o644); err != nil {
		return err
	}
	defer os.Remove(file)
	if _, err := run(ctx, "", pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--prefer-binary",
		"--target", dir, "--requirement", file); err != nil {
		return err
	}
	return compilePython(ctx, venv, dir, sitePackages)
}

// compilePython compiles the modules in dir, which will be at path in an
// image. A predictor that compiles as it imports is 6 s late, and nothing could
// keep the result on its read-only root. The files carry no time of their
// source: an image has none.
func compilePython(ctx context.Context, venv, dir, path string) error {
	if _, err := pip(ctx, venv); err != nil {
		return err
	}
	// Some packages ship templates and tests for other Pythons, which do not
	// compile: they are none of ours.
	_, _ = run(ctx, "", filepath.Join(venv, "bin", "python"), "-m", "compileall", "-q", "-j", "2",
		"--invalidation-mode", "unchecked-hash", "-s", dir, "-p", path, dir)
	return ctx.Err()
}

// pip is the path of pip in the virtual environment venv, made if need be. Its
// Python must be the one of the image: wheels and byte code are made for it.
func pip(ctx context.Context, venv string) (string, error) {
	path := filepath.Join(venv, "bin", "pip")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	python := "python" + versions.Python
	if err := ensureCommands(ctx, map[string]string{python: python}); err != nil {
		return "", err
	}
	if _, err := run(ctx, "", python, "-m", "venv", venv); err == nil {
		return path, nil
	}
	// Debian keeps what venv needs in a package apart.
	if _, err := run(ctx, "", "apt-get", "install", "-y", "-qq", "--no-install-recommends", python+"-venv"); err != nil {
		return "", err
	}
	_, err := run(ctx, "", python, "-m", "venv", "--clear", venv)
	return path, err
}
