package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	refName = "org.opencontainers.image.ref.name"
	// containerdName holds the name that containerd gives to an image that it imports.
	containerdName = "io.containerd.image.name"
)

// Named is an image for several architectures, with its name in a registry and a tag.
type Named struct {
	Name  string
	Index v1.ImageIndex
}

// OCI returns the index as registries keep it: with compressed layers, in OCI's media types,
// annotated. It refuses an image that contains a program for another architecture.
func (x Index) OCI(annotations map[string]string) (v1.ImageIndex, error) {
	var all []mutate.IndexAddendum
	for _, i := range x {
		if err := i.checkPrograms(); err != nil {
			return nil, err
		}
		img, err := i.packed()
		if err != nil {
			return nil, err
		}
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		all = append(all, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture},
		}})
	}
	index := mutate.IndexMediaType(mutate.AppendManifests(empty.Index, all...), types.OCIImageIndex)
	if len(annotations) == 0 {
		return index, nil
	}
	return mutate.Annotations(index, annotations).(v1.ImageIndex), nil
}

// WriteLayout writes an OCI image layout of the images to dir and replaces one that is there.
func WriteLayout(dir string, images ...Named) error {
	if err := removeLayout(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("image layout %s: %w", dir, err)
	}
	for _, i := range images {
		names := map[string]string{refName: i.Name, containerdName: i.Name}
		if err := path.AppendIndex(i.Index, layout.WithAnnotations(names)); err != nil {
			return fmt.Errorf("image layout %s: %s: %w", dir, i.Name, err)
		}
	}
	return nil
}

// removeLayout removes a folder that is an image layout or empty, and nothing else.
func removeLayout(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is not an image layout, and contains %s: name another folder, or empty this one", dir, entries[0].Name())
	}
	return os.RemoveAll(dir)
}

// PushLayout sends each image of the layout in dir to the registry that its name says, with the
// credentials of the user's own Docker configuration.
func PushLayout(ctx context.Context, dir string, pushed func(name string)) error {
	index, manifest, err := readLayout(dir)
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		as := d.Annotations[refName]
		tag, err := name.NewTag(as)
		if err != nil {
			return fmt.Errorf("image layout %s: %w", dir, err)
		}
		i, err := index.ImageIndex(d.Digest)
		if err != nil {
			return fmt.Errorf("image layout %s: %s: %w", dir, as, err)
		}
		if err := write(ctx, tag, i); err != nil {
			return err
		}
		pushed(as)
	}
	return nil
}

// ArchiveLayout writes the layout in dir to one tar for containerd, in which each image has its name
// by tag and by digest: a node finds an image only by the name that the pod uses.
func ArchiveLayout(dir, file string) error {
	_, manifest, err := readLayout(dir)
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		tag, err := name.NewTag(d.Annotations[refName])
		if err != nil {
			return fmt.Errorf("image layout %s: %w", dir, err)
		}
		d.Annotations = maps.Clone(d.Annotations)
		d.Annotations[containerdName] = tag.Digest(d.Digest.String()).String()
		delete(d.Annotations, refName)
		manifest.Manifests = append(manifest.Manifests, d)
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	const top = "index.json"
	tmp, err := os.MkdirTemp(filepath.Dir(file), ".archive-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.WriteFile(filepath.Join(tmp, top), data, 0o644); err != nil {
		return err
	}
	_, err = WriteLayer(file, Copy{From: dir, To: "/", Skip: []string{top}}, Copy{From: tmp, To: "/"})
	return err
}

func readLayout(dir string) (v1.ImageIndex, *v1.IndexManifest, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("image layout %s: %w", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, nil, fmt.Errorf("image layout %s: %w", dir, err)
	}
	return index, manifest.DeepCopy(), nil
}
