package image

import (
	"archive/tar"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// bothIndex is an image for two architectures, annotated.
func bothIndex(t *testing.T) v1.ImageIndex {
	t.Helper()
	x := Index{programImage(t, "amd64", elf.EM_X86_64), programImage(t, "arm64", elf.EM_AARCH64)}
	index, err := x.OCI(map[string]string{"org.opencontainers.image.version": "v1"})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func digestOf(t *testing.T, index v1.ImageIndex) string {
	t.Helper()
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func TestOCI(t *testing.T) {
	index := bothIndex(t)
	if again := digestOf(t, bothIndex(t)); again != digestOf(t, index) {
		t.Errorf("the same files in other folders give %s, want %s", again, digestOf(t, index))
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if manifest.MediaType != types.OCIImageIndex || manifest.Annotations["org.opencontainers.image.version"] != "v1" {
		t.Errorf("the index is %s with %v, want OCI's with its annotations", manifest.MediaType, manifest.Annotations)
	}
	for _, d := range manifest.Manifests {
		if d.MediaType != types.OCIManifestSchema1 {
			t.Errorf("the image for %s is %s, want OCI's", d.Platform.Architecture, d.MediaType)
		}
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		m, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		if m.Config.MediaType != types.OCIConfigJSON || m.Layers[0].MediaType != types.OCILayer {
			t.Errorf("the image for %s has %s and %s, want OCI's", d.Platform.Architecture, m.Config.MediaType, m.Layers[0].MediaType)
		}
	}
}

func TestPushLayout(t *testing.T) {
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	as := strings.TrimPrefix(s.URL, "http://") + "/libra/app:v1"
	dir := filepath.Join(t.TempDir(), "images")
	index := bothIndex(t)
	for range 2 { // the second takes the first's place
		if err := WriteLayout(dir, Named{Name: as, Index: index}); err != nil {
			t.Fatal(err)
		}
	}
	var pushed []string
	if err := PushLayout(t.Context(), dir, func(name string) { pushed = append(pushed, name) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{as}, pushed); diff != "" {
		t.Errorf("pushed (-want +got):\n%s", diff)
	}
	tag, err := name.NewTag(as)
	if err != nil {
		t.Fatal(err)
	}
	there, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := digestOf(t, there), digestOf(t, index); got != want {
		t.Errorf("the registry has %s, want %s", got, want)
	}
}

func TestWriteLayoutLeavesOtherFolders(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine")
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteLayout(dir); err == nil || !strings.Contains(err.Error(), "mine") {
		t.Errorf("WriteLayout() error = %v, want one that names the file in the way", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

func TestArchiveLayout(t *testing.T) {
	dir, file := filepath.Join(t.TempDir(), "images"), filepath.Join(t.TempDir(), "images.tar")
	index := bothIndex(t)
	if err := WriteLayout(dir, Named{Name: "registry.example/libra/app:v1", Index: index}); err != nil {
		t.Fatal(err)
	}
	if err := ArchiveLayout(dir, file); err != nil {
		t.Fatal(err)
	}
	files := untar(t, file)
	var top v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &top); err != nil {
		t.Fatal(err)
	}
	digest := digestOf(t, index)
	var names []string
	for _, d := range top.Manifests {
		if d.Digest.String() != digest {
			t.Errorf("%v is of %s, want %s", d.Annotations, d.Digest, digest)
		}
		names = append(names, d.Annotations[containerdName])
	}
	if diff := cmp.Diff([]string{"registry.example/libra/app:v1", "registry.example/libra/app@" + digest}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	// The index, and the manifest, the configuration and the layer of each image.
	blobs := slices.DeleteFunc(slices.Collect(maps.Keys(files)), func(name string) bool { return !strings.HasPrefix(name, "blobs/sha256/") })
	if _, ok := files["oci-layout"]; !ok || len(blobs) != 7 {
		t.Errorf("the archive has oci-layout: %t, and %d blobs, want 7", ok, len(blobs))
	}
}

func untar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if files[h.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}
