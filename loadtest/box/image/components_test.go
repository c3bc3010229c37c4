package image

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func imageOf(t *testing.T, files map[string]string, more ...Copy) Image {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l, err := WriteLayer(filepath.Join(t.TempDir(), "layer.tar"), append([]Copy{{From: dir, To: "/"}}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	img, err := New(Config{User: NonRoot, Entrypoint: []string{"/opt/run"}}, l)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestComponents(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	img := imageOf(t, map[string]string{
		"var/lib/dpkg/status.d/libc6":                                          "Package: libc6\nArchitecture: arm64\nVersion: 2.36-9+deb12u14\nDescription: GNU C\n Version: none of its fields\n",
		"usr/local/lib/python3.11/dist-packages/six-1.17.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: six\nVersion: 1.17.0\n\nVersion: of the text\n",
		"usr/share/METADATA":                                                   "no package's",
	}, Copy{From: self, To: "/opt/run"})
	got, err := img.Components()
	if err != nil {
		t.Fatal(err)
	}
	var modules, others []Component
	for _, c := range got {
		if c.Type == "golang" {
			modules = append(modules, c)
		} else {
			others = append(others, c)
		}
	}
	want := []Component{
		{Type: "deb", Name: "libc6", Version: "2.36-9+deb12u14", Architecture: "arm64"},
		{Type: "pypi", Name: "six", Version: "1.17.0"},
	}
	if diff := cmp.Diff(want, others); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	stdlib := Component{Type: "golang", Name: "stdlib", Version: strings.TrimPrefix(runtime.Version(), "go")}
	if !slices.Contains(modules, stdlib) {
		t.Errorf("this test's own program has %v, want %v in it", modules, stdlib)
	}
}

func TestGoComponents(t *testing.T) {
	got := goComponents(&debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:a"},
		{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.1.0", Sum: "h1:b"}},
		{Path: "libra.dev/libra", Version: "v0.0.0", Replace: &debug.Module{Path: "../.."}},
	}})
	want := []Component{
		{Type: "golang", Name: "stdlib", Version: "1.26.8"},
		{Type: "golang", Name: "example.com/a", Version: "v1.0.0", Sum: "h1:a"},
		{Type: "golang", Name: "example.com/fork", Version: "v1.1.0", Sum: "h1:b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("goComponents() (-want +got):\n%s", diff)
	}
}

func TestComponentsNamesBrokenPackage(t *testing.T) {
	_, err := imageOf(t, map[string]string{"var/lib/dpkg/status.d/libc6": "Package: libc6\n"}).Components()
	if err == nil || !strings.Contains(err.Error(), "/var/lib/dpkg/status.d/libc6: it has no field Version") {
		t.Errorf("Components() error = %v, want one that names the file", err)
	}
}
