// Package image makes container images out of files, without Docker: tars that
// containerd imports, or pushes to a registry. The same files and settings give
// the same image.
package image

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// NonRoot is the user of images whose parts care only that it is not root. It
// is a number because the kubelet cannot tell of a name that it is not root's.
const NonRoot = "65532"

// Config is how a container of the image starts.
type Config struct {
	// Architecture is as Go names it; empty is this machine's.
	Architecture string
	User         string
	Entrypoint   []string
	Env          []string
	WorkingDir   string
}

// Image is layers and a Config.
type Image struct {
	config Config
	layers []Layer
	local  v1.Image
}

// New puts layers, the lowest first, and a configuration together.
func New(c Config, layers ...Layer) (Image, error) {
	plain := make([]v1.Layer, 0, len(layers))
	for _, l := range layers {
		plain = append(plain, l)
	}
	img, err := assemble(c, plain)
	return Image{config: c, layers: layers, local: img}, err
}

func assemble(c Config, layers []v1.Layer) (v1.Image, error) {
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: cmp.Or(c.Architecture, runtime.GOARCH),
		OS:           "linux",
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       c.User,
			Entrypoint: c.Entrypoint,
			Env:        append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, c.Env...),
			WorkingDir: c.WorkingDir,
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layers...)
}

// ContentID identifies what is in the image, whether its layers are compressed
// or not: the first 12 digits of the digest of its configuration, which holds
// the digests of its uncompressed layers.
func (i Image) ContentID() (string, error) {
	h, err := i.local.ConfigName()
	if err != nil {
		return "", err
	}
	return h.Hex[:12], nil
}

// WriteTar writes the image under a name to a tar that containerd imports.
// A tar that holds just that already is left alone.
func (i Image) WriteTar(path, as string) error {
	tag, err := name.NewTag(as)
	if err != nil {
		return err
	}
	if same, err := i.isIn(path, as); same || err != nil {
		return err
	}
	// Whoever reads the folder must never find half a tar in it.
	tmp := path + ".part"
	if err := tarball.WriteToFile(tmp, tag, i.local); err != nil {
		return fmt.Errorf("write image %s: %w", as, err)
	}
	return os.Rename(tmp, path)
}

// isIn says whether the tar at path holds this very image under that name.
func (i Image) isIn(path, as string) (bool, error) {
	config, err := i.local.ConfigName()
	if err != nil {
		return false, err
	}
	there, err := InTar(path)
	if err != nil {
		return false, nil // there is none, or it is not one of ours: write it anew
	}
	return there == Reference{Name: as, Config: config.String()}, nil
}

// Reference is an image in a tar.
type Reference struct {
	Name   string `json:"name"`   // with its tag
	Config string `json:"config"` // the digest of its configuration, by which its content is known
}

// InTar is the one image in a tar that WriteTar wrote.
func InTar(path string) (Reference, error) {
	m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	if err != nil {
		return Reference{}, fmt.Errorf("image in %s: %w", path, err)
	}
	if len(m) != 1 || len(m[0].RepoTags) != 1 {
		return Reference{}, fmt.Errorf("%s has not one image of one name", path)
	}
	return Reference{Name: m[0].RepoTags[0], Config: m[0].Config}, nil
}

// packed is the image with compressed layers, in OCI's media types.
func (i Image) packed() (v1.Image, error) {
	packed := make([]v1.Layer, 0, len(i.layers))
	for _, l := range i.layers {
		p, err := tarball.LayerFromFile(l.path, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		packed = append(packed, p)
	}
	img, err := assemble(i.config, packed)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON), nil
}
