// Package image makes container images out of files, without Docker. It writes
// them to tars that containerd imports, or pushes them to a registry. The same
// files and settings give the same image.
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

// NonRoot is the user of images that only need not to run as root. It is a
// number, because the kubelet cannot tell from a name whether the user is root.
const NonRoot = "65532"

// Config is how a container of the image starts.
type Config struct {
	// Architecture is the architecture as Go names it; empty is this machine's.
	Architecture string
	User         string
	Entrypoint   []string
	Env          []string
	WorkingDir   string
}

// Image consists of layers and a Config.
type Image struct {
	config Config
	layers []Layer
	local  v1.Image
}

// New makes an image of a configuration and layers, the lowest first.
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

// ContentID identifies the content of the image, compressed or not: the first
// 12 digits of the digest of its configuration, which holds the digests of its
// uncompressed layers.
func (i Image) ContentID() (string, error) {
	h, err := i.local.ConfigName()
	if err != nil {
		return "", err
	}
	return h.Hex[:12], nil
}

// WriteTar writes the image under the name as to a tar that containerd imports.
// It skips a tar that already holds exactly that.
func (i Image) WriteTar(path, as string) error {
	tag, err := name.NewTag(as)
	if err != nil {
		return err
	}
	if same, err := i.isIn(path, as); same || err != nil {
		return err
	}
	// A reader of the folder must never find half a tar in it.
	tmp := path + ".part"
	if err := tarball.WriteToFile(tmp, tag, i.local); err != nil {
		return fmt.Errorf("write image %s: %w", as, err)
	}
	return os.Rename(tmp, path)
}

// isIn reports whether the tar at path holds this very image under the name as.
func (i Image) isIn(path, as string) (bool, error) {
	config, err := i.local.ConfigName()
	if err != nil {
		return false, err
	}
	there, err := InTar(path)
	if err != nil {
		return false, nil // there is no tar, or it is not one of ours: write it again
	}
	return there == Reference{Name: as, Config: config.String()}, nil
}

// Reference names an image in a tar.
type Reference struct {
	Name   string `json:"name"`   // with its tag
	Config string `json:"config"` // the digest of its configuration, which identifies its content
}

// InTar returns the one image in a tar that WriteTar wrote.
func InTar(path string) (Reference, error) {
	m, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(path) })
	if err != nil {
		return Reference{}, fmt.Errorf("read the image in %s: %w", path, err)
	}
	if len(m) != 1 || len(m[0].RepoTags) != 1 {
		return Reference{}, fmt.Errorf("%s does not have exactly one image with one name", path)
	}
	return Reference{Name: m[0].RepoTags[0], Config: m[0].Config}, nil
}

// packed returns the image with compressed layers, in OCI's media types.
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
