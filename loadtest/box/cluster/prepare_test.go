package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
	"libra.dev/libra/loadtest/box/versions"
)

// writeImage writes a tar of an image with one file of the given content.
func writeImage(t *testing.T, l layout.Layout, name, content string) image.Reference {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	layer, err := image.WriteLayer(filepath.Join(t.TempDir(), "layer.tar"), image.Copy{From: file, To: "/file"})
	if err != nil {
		t.Fatal(err)
	}
	img, err := image.New(image.Config{}, layer)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.Images(), 0o755); err != nil {
		t.Fatal(err)
	}
	tar := filepath.Join(l.Images(), name+".tar")
	if err := img.WriteTar(tar, "dev.local/"+name+":1"); err != nil {
		t.Fatal(err)
	}
	ref, err := image.InTar(tar)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func preparedDir(t *testing.T, l layout.Layout) string {
	t.Helper()
	p, err := preparedOf(l)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := p.dir(l)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The folder goes by the content of images: the same name may come to mean another.
func TestPreparedDir(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir()}
	writeImage(t, l, "redis", "7.0")
	first := preparedDir(t, l)
	if again := preparedDir(t, l); again != first {
		t.Errorf("the same images are in %s and in %s", first, again)
	}
	writeImage(t, l, "redis", "7.2")
	if other := preparedDir(t, l); other == first {
		t.Errorf("another image of the same name is in %s too", other)
	}
	if err := os.WriteFile(filepath.Join(l.Images(), "half.tar"), []byte("no tar"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := preparedOf(l); err == nil {
		t.Error("a file that is no image passes for one")
	}
}

// fakePrepared stands in for PrepareImages, with one file of each kind that layers have.
func fakePrepared(t *testing.T, dir string) {
	t.Helper()
	for path, content := range map[string]string{
		preparedList: `{"containerd":"` + versions.Containerd + `","images":[]}`,
		snapshotsDB:  "snapshots",
		metadataDB:   "metadata",
		filepath.Join(contentStore, "blobs/sha256/1"):  "blob",
		filepath.Join(snapshotsFolder, "1/fs/bin/run"): "program",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("run", filepath.Join(dir, snapshotsFolder, "1/fs/bin/link")); err != nil {
		t.Fatal(err)
	}
}

// Workers get the images that were prepared for them.
func TestGiveImagesToWorkers(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), State: t.TempDir()}
	from := filepath.Join(l.Prepared(), "0123")
	fakePrepared(t, from)
	fakePrepared(t, filepath.Join(from, workersFolder))
	file := filepath.Join(snapshotsFolder, "2/fs/run")
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(filepath.Join(from, file)), 0o755),
		os.WriteFile(filepath.Join(from, file), nil, 0o755),
	); err != nil {
		t.Fatal(err)
	}
	members := membersOf(l, 2)
	if err := (Cluster{Layout: l}).giveImages(t.Context(), members...); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		_, err := os.Stat(filepath.Join(containerdRoot(m.layout), file))
		if there := err == nil; there == m.isWorker() {
			t.Errorf("what is for the control node alone is on %s: %t (%v)", m.name(), there, err)
		}
	}
}

func TestGiveImages(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), State: t.TempDir()}
	from := filepath.Join(l.Prepared(), "0123")
	fakePrepared(t, from)
	root := containerdRoot(l)
	left := filepath.Join(root, "left")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (Cluster{Layout: l}).giveImages(t.Context(), alone(l)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what an earlier node left is there still (%v)", err)
	}
	for path, want := range map[string]bool{
		filepath.Join(contentStore, "blobs/sha256/1"):  true,
		filepath.Join(snapshotsFolder, "1/fs/bin/run"): true,
		snapshotsDB: false,
		metadataDB:  false,
	} {
		had, err := os.Stat(filepath.Join(from, path))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if same := os.SameFile(had, got); same != want {
			t.Errorf("%s is the same file: %t, want %t, as containerd writes to its databases and to nothing else", path, same, want)
		}
		if diff := cmp.Diff(had.Mode(), got.Mode()); diff != "" {
			t.Errorf("mode of %s: %s", path, diff)
		}
	}
	if link, err := os.Readlink(filepath.Join(root, snapshotsFolder, "1/fs/bin/link")); link != "run" {
		t.Errorf("the link goes to %q (%v), want run", link, err)
	}
}

// Whiteouts of lower layers are kept: a device for a file, an attribute for a folder.
func TestGiveImagesKeepsWhiteouts(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), State: t.TempDir()}
	from := filepath.Join(l.Prepared(), "0123")
	fakePrepared(t, from)
	layer := filepath.Join(snapshotsFolder, "1/fs")
	const opaque = "trusted.overlay.opaque"
	if err := errors.Join(
		unix.Mknod(filepath.Join(from, layer, "gone"), unix.S_IFCHR, 0),
		unix.Setxattr(filepath.Join(from, layer, "bin"), opaque, []byte("y"), 0),
	); err != nil {
		t.Skipf("only root can make them: %v", err)
	}
	if err := (Cluster{Layout: l}).giveImages(t.Context(), alone(l)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(containerdRoot(l), layer, "gone"))
	if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		t.Errorf("the device is not there: %v, %v", info, err)
	}
	value := make([]byte, 8)
	n, err := unix.Getxattr(filepath.Join(containerdRoot(l), layer, "bin"), opaque, value)
	if err != nil || string(value[:n]) != "y" {
		t.Errorf("attribute %s = %q (%v), want y", opaque, value[:max(0, n)], err)
	}
}

// Nothing is taken from another containerd's folder, or from an unfinished one.
func TestLastPrepared(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), State: t.TempDir()}
	if err := os.MkdirAll(filepath.Join(l.Prepared(), preparing, "root"), 0o755); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(l.Prepared(), "0123")
	fakePrepared(t, other)
	if err := os.WriteFile(filepath.Join(other, preparedList), []byte(`{"containerd":"v1.0.0"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if dir, _, err := lastPrepared(l); dir != "" || err != nil {
		t.Errorf("lastPrepared() = %q, %v, want none", dir, err)
	}
	// The node starts without prepared images, and imports them.
	if err := (Cluster{Layout: l}).giveImages(t.Context(), alone(l)); err != nil {
		t.Fatal(err)
	}
	if err := keepOnly(l, other); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(l.Prepared())
	if err != nil || len(entries) != 1 {
		t.Errorf("there are %v (%v), want what was kept alone", entries, err)
	}
}
