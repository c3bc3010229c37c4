package stack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDebianLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debian.lock")
	want := debianLock{
		"amd64": {{"libc6", "2.36-9", "aa"}, {"zlib1g", "1:1.2.13", "bb"}},
		"arm64": {{"libc6", "2.36-9", "cc"}},
	}
	if err := want.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readDebianLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(path, []byte("# first\namd64 libc6 2.36-9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readDebianLock(path); err == nil || !strings.Contains(err.Error(), `line 2: "amd64 libc6 2.36-9"`) {
		t.Errorf("readDebianLock() error = %v, want one that names the line", err)
	}
}

// Everything that was asked for is pinned: pythonPackages and the lock go together.
func TestDebianLockHasPythonPackages(t *testing.T) {
	lock, err := readDebianLock("../../../predictor/debian.lock")
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range Architectures() {
		for _, wanted := range (&builder{arch: arch}).debianPackages() {
			if !slices.ContainsFunc(lock[arch], func(d deb) bool { return d.Name == wanted }) {
				t.Errorf("predictor/debian.lock has no %s for %s", wanted, arch)
			}
		}
	}
}

func TestCheckPinned(t *testing.T) {
	libc, zlib := deb{"libc6", "2.36-9", "aa"}, deb{"zlib1g", "1:1.2.13", "bb"}
	b := &builder{arch: "arm64", pinned: []deb{libc, zlib}}
	for _, tc := range []struct {
		name    string
		got     []deb
		wantErr string
	}{
		{"the pinned ones", []deb{libc, zlib}, ""},
		{"another content", []deb{libc, {"zlib1g", "1:1.2.13", "cc"}}, "zlib1g 1:1.2.13 (sha256 cc), which predictor/debian.lock does not have for arm64"},
		{"one too few", []deb{libc}, "1 packages for arm64, but predictor/debian.lock has 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := b.checkPinned(tc.got)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("checkPinned() error = %v, want %q", err, tc.wantErr)
			}
		})
	}
	if diff := cmp.Diff([]string{"libc6=2.36-9", "zlib1g=1:1.2.13"}, b.debianPackages()); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}

func TestOnlyLicences(t *testing.T) {
	doc := filepath.Join(t.TempDir(), "doc")
	if err := onlyLicences(doc); err != nil {
		t.Errorf("without such a folder: %v", err)
	}
	for _, name := range []string{"copyright", "changelog.gz"} {
		if err := os.MkdirAll(filepath.Join(doc, "libc6"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(doc, "libc6", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("libc6", filepath.Join(doc, "libc-bin")); err != nil {
		t.Fatal(err)
	}
	if err := onlyLicences(doc); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(doc, "libc*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(doc, "libc-bin", "copyright"), filepath.Join(doc, "libc6", "copyright")}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
