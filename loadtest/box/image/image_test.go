package image

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// tree makes the same files and links in a new folder, modified at mtime.
func tree(t *testing.T, mtime time.Time) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"bin/run": 0o755, "etc/conf": 0o640, "src/a.py": 0o644, "src/__pycache__/a.pyc": 0o644} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, mtime, mtime); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("bin/run", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func testImage(t *testing.T, mtime time.Time, c Config) Image {
	t.Helper()
	l, err := WriteLayer(filepath.Join(t.TempDir(), "layer.tar"), Copy{From: tree(t, mtime), To: "/opt/app", Skip: []string{"__pycache__"}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := New(c, l)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func contentID(t *testing.T, i Image) string {
	t.Helper()
	id, err := i.ContentID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestWriteLayer(t *testing.T) {
	l, err := WriteLayer(filepath.Join(t.TempDir(), "layer.tar"), Copy{From: tree(t, time.Now()), To: "/opt/app", Skip: []string{"__pycache__"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type entry struct {
		Name, Link, Content string
		Mode                int64
	}
	var got []entry
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d and is from %v, want root's and from 1970", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, entry{h.Name, h.Linkname, string(content), h.Mode})
	}
	want := []entry{
		{Name: "opt/", Mode: 0o755},
		{Name: "opt/app/", Mode: 0o755},
		{Name: "opt/app/bin/", Mode: 0o755},
		{Name: "opt/app/bin/run", Mode: 0o755, Content: "bin/run"},
		{Name: "opt/app/etc/", Mode: 0o755},
		{Name: "opt/app/etc/conf", Mode: 0o644, Content: "etc/conf"},
		{Name: "opt/app/link", Mode: 0o777, Link: "bin/run"},
		{Name: "opt/app/src/", Mode: 0o755},
		{Name: "opt/app/src/a.py", Mode: 0o644, Content: "src/a.py"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestWriteLayerRelativeTarget(t *testing.T) {
	_, err := WriteLayer(filepath.Join(t.TempDir(), "layer.tar"), Copy{From: t.TempDir(), To: "app"})
	if err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("WriteLayer() error = %v, want one that asks for an absolute path", err)
	}
}

func TestContentID(t *testing.T) {
	c := Config{User: NonRoot, Entrypoint: []string{"/opt/app/bin/run"}}
	first := contentID(t, testImage(t, time.Unix(1e9, 0), c))
	if later := contentID(t, testImage(t, time.Now(), c)); later != first {
		t.Errorf("the same files written later: %s, want %s", later, first)
	}
	c.User = "0"
	if other := contentID(t, testImage(t, time.Unix(1e9, 0), c)); other == first {
		t.Error("another user gives the same content id")
	}
}

func TestWriteTar(t *testing.T) {
	img := testImage(t, time.Now(), Config{User: NonRoot, Entrypoint: []string{"/opt/app/bin/run"}})
	path := filepath.Join(t.TempDir(), "image.tar")
	for _, as := range []string{"dev.local/app:1", "dev.local/app:2"} {
		if err := img.WriteTar(path, as); err != nil {
			t.Fatal(err)
		}
		tag, err := name.NewTag(as)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tarball.ImageFromPath(path, &tag); err != nil {
			t.Errorf("read back %s: %v", as, err)
		}
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := img.WriteTar(path, "dev.local/app:2"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same image was written again (%v)", err)
	}
}
