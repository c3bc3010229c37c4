package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/apt"
	"libra.dev/libra/loadtest/box/versions"
)

// rootfs unpacks Debian packages and their dependencies into dir. Their maintainer scripts do
// not run, because nothing of ours needs a complete system. So it needs neither root nor a
// namespace.
func (b *builder) rootfs(ctx context.Context, dir string, packages ...string) ([]deb, error) {
	if err := apt.Ensure(ctx, b.log, apt.Tool{Program: "mmdebstrap", Package: "mmdebstrap"}); err != nil {
		return nil, err
	}
	sources, err := debianSources(ctx, versions.DebianSuite)
	if err != nil {
		return nil, err
	}
	if err := emptyDir(dir); err != nil {
		return nil, err
	}
	args := []string{"--quiet", "--mode=chrootless", "--variant=extract", "--architectures=" + b.architecture(), "--skip=check/qemu,cleanup/apt",
		"--include=" + strings.Join(packages, ","), versions.DebianSuite, dir}
	if _, err := run(ctx, "", "mmdebstrap", append(args, sources...)...); err != nil {
		return nil, err
	}
	debs, err := b.notePackages(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := onlyLicences(filepath.Join(dir, "usr/share/doc")); err != nil {
		return nil, err
	}
	// Only root gets devices; the last three depend on this machine.
	for _, unused := range []string{"dev", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt", "var/log",
		"etc/apt", "etc/hostname", "etc/resolv.conf"} {
		if err := os.RemoveAll(filepath.Join(dir, unused)); err != nil {
			return nil, err
		}
	}
	return debs, postInstall(dir)
}

// System installs a suite of Debian in dir, with packages and their dependencies.
func System(ctx context.Context, dir, suite string, log Logf, packages ...string) error {
	if err := apt.Ensure(ctx, log, apt.Tool{Program: "mmdebstrap", Package: "mmdebstrap"}); err != nil {
		return err
	}
	sources, err := debianSources(ctx, suite)
	if err != nil {
		return err
	}
	if err := emptyDir(dir); err != nil {
		return err
	}
	args := []string{"--quiet", "--mode=root", "--variant=minbase", "--include=" + strings.Join(packages, ","), suite, dir}
	_, err = run(ctx, "", "mmdebstrap", append(args, sources...)...)
	return err
}

// emptyDir makes dir an empty folder.
func emptyDir(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

// postInstall does the part of the maintainer scripts' work that programs need: certificates in
// one file, and names for the users root and nobody.
func postInstall(dir string) error {
	pems, err := filepath.Glob(filepath.Join(dir, "usr/share/ca-certificates/mozilla/*.crt"))
	if err != nil {
		return err
	}
	var bundle bytes.Buffer
	for _, pem := range pems {
		data, err := os.ReadFile(pem)
		if err != nil {
			return err
		}
		bundle.Write(data)
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"etc/group":  "root:x:0:\nnogroup:x:65534:\n",
	}
	if bundle.Len() > 0 {
		files["etc/ssl/certs/ca-certificates.crt"] = bundle.String()
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// debianSources returns apt's sources on this machine for the box's suite, rewritten for suite.
func debianSources(ctx context.Context, suite string) ([]string, error) {
	out, err := run(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	sources := sourcesOfSuite(string(out), versions.DebianSuite, suite)
	if len(sources) == 0 {
		return nil, fmt.Errorf("apt's sources on this machine have no component main of Debian %s; add one to /etc/apt/sources.list.d", versions.DebianSuite)
	}
	return sources, nil
}

// sourcesOfSuite takes a suite and its updates out of lines "URI RELEASE COMPONENT". It writes
// them in the form of apt's sources.list, with the suite replaced by wanted.
func sourcesOfSuite(targets, suite, wanted string) []string {
	var sources []string
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || !slices.Contains([]string{suite, suite + "-updates", suite + "-security"}, f[1]) {
			continue
		}
		f[1] = wanted + strings.TrimPrefix(f[1], suite)
		if s := "deb " + strings.Join(f, " "); !slices.Contains(sources, s) {
			sources = append(sources, s)
		}
	}
	return sources
}

// run runs a command and returns its standard output; its standard error is
// part of the error.
func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(exit.Stderr))
	}
	return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
}
