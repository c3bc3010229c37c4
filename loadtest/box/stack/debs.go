package stack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/versions"
)

// deb is a Debian package.
type deb struct{ Name, Version, SHA256 string }

// debianLock has the Debian packages under a release's predictor, by architecture.
type debianLock map[string][]deb

func debianLockPath(root string) string { return filepath.Join(root, predictorDir, "debian.lock") }

func readDebianLock(path string) (debianLock, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the predictor's Debian packages: %w", err)
	}
	lock := debianLock{}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 4 {
			return nil, fmt.Errorf("%s, line %d: %q; it must be ARCHITECTURE NAME VERSION SHA256", path, number, strings.TrimSpace(line))
		}
		lock[f[0]] = append(lock[f[0]], deb{Name: f[1], Version: f[2], SHA256: f[3]})
	}
	return lock, nil
}

func (l debianLock) write(path string) error {
	var s strings.Builder
	s.WriteString("# Debian " + versions.DebianSuite + " under the predictor, written by `bin/box release --lock`: architecture, package, version, sha256.\n")
	for _, arch := range Architectures() {
		for _, d := range l[arch] {
			fmt.Fprintln(&s, arch, d.Name, d.Version, d.SHA256)
		}
	}
	return os.WriteFile(path, []byte(s.String()), 0o644)
}

// notePackages writes the control data of each Debian package to dir, in the folder where
// scanners look for it, and compares the packages with the pinned ones. apt left the packages
// themselves in dir.
func (b *builder) notePackages(ctx context.Context, dir string) ([]deb, error) {
	debs, err := filepath.Glob(filepath.Join(dir, "var/cache/apt/archives/*.deb"))
	if err != nil {
		return nil, err
	}
	// The rest of the folder is a database without packages.
	if err := os.RemoveAll(filepath.Join(dir, "var/lib/dpkg")); err != nil {
		return nil, err
	}
	notes := filepath.Join(dir, "var/lib/dpkg/status.d")
	if err := os.MkdirAll(notes, 0o755); err != nil {
		return nil, err
	}
	var got []deb
	for _, path := range debs {
		control, err := run(ctx, "", "dpkg-deb", "--field", path)
		if err != nil {
			return nil, err
		}
		sum, err := fileSHA256(path)
		if err != nil {
			return nil, err
		}
		d := deb{Name: field(control, "Package"), Version: field(control, "Version"), SHA256: sum}
		if err := os.WriteFile(filepath.Join(notes, d.Name), control, 0o644); err != nil {
			return nil, err
		}
		got = append(got, d)
	}
	slices.SortFunc(got, func(a, b deb) int { return cmp.Compare(a.Name, b.Name) })
	return got, b.checkPinned(got)
}

func (b *builder) checkPinned(got []deb) error {
	if len(b.pinned) == 0 {
		return nil
	}
	for _, d := range got {
		if !slices.Contains(b.pinned, d) {
			return fmt.Errorf("apt took the package %s %s (sha256 %s), which predictor/debian.lock does not have for %s: rewrite that file with `bin/box release --lock`",
				d.Name, d.Version, d.SHA256, b.architecture())
		}
	}
	if len(got) != len(b.pinned) {
		return fmt.Errorf("apt took %d packages for %s, but predictor/debian.lock has %d", len(got), b.architecture(), len(b.pinned))
	}
	return nil
}

func fileSHA256(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(data)), nil
}

// field returns the value of a one-line field in a package's control data.
func field(control []byte, name string) string {
	for line := range strings.Lines(string(control)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// onlyLicences removes everything from a folder of packages' documentation except their licences,
// which must go wherever the programs go.
func onlyLicences(doc string) error {
	err := filepath.WalkDir(doc, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "copyright" {
			return err
		}
		// The folder of some packages is a link to another package's.
		if e.Type()&fs.ModeSymlink != 0 && filepath.Dir(path) == doc {
			return nil
		}
		return os.Remove(path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LockDebian writes the versions that Debian now has of the packages under the predictor to
// predictor/debian.lock in the repository at root.
func LockDebian(ctx context.Context, scratch, root string, log Logf) error {
	lock := debianLock{}
	for _, arch := range Architectures() {
		b := &builder{log: log, arch: arch}
		log("finding the Debian packages for %s", arch)
		dir := filepath.Join(scratch, "lock-"+arch)
		defer os.RemoveAll(dir)
		debs, err := b.rootfs(ctx, dir, b.debianPackages()...)
		if err != nil {
			return fmt.Errorf("find the Debian packages for %s: %w", arch, err)
		}
		lock[arch] = debs
	}
	return lock.write(debianLockPath(root))
}
