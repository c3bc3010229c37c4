package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/version"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
)

// pushTimeout bounds the push of all images of a release.
const pushTimeout = 30 * time.Minute

// Release is a version of Libra's images. The same sources, Go and Python give the same digests,
// whoever makes the release and wherever.
type Release struct {
	// Registry is the place of the images, now or later, as registry/path.
	Registry      string
	Version       string
	Architectures []string
	// Out is the folder for the result: images, an OCI image layout; images.json, each image's
	// reference by digest, by its name; and components.json, Components.
	Out string
}

// Components lists what is in a release's images, for a bill of materials. It leaves out Redis's
// image, which is upstream's.
type Components struct {
	Images []ImageComponents `json:"images"`
}

// ImageComponents lists what is in the image of one name for one architecture.
type ImageComponents struct {
	Name         string `json:"name"`         // as in images.json
	Architecture string `json:"architecture"` // as Go names it
	// Digest identifies the image for this architecture, not the index in images.json.
	Digest     string            `json:"digest"`
	Components []image.Component `json:"components"`
}

// Layout is the folder of the image layout.
func (r Release) Layout() string { return filepath.Join(r.Out, "images") }

// Build makes the release from the repository at root.
func (r Release) Build(ctx context.Context, l layout.Layout, root string, log Logf) error {
	redis, err := r.check(root)
	if err != nil {
		return err
	}
	lock, err := readDebianLock(debianLockPath(root))
	if err != nil {
		return err
	}
	names, indexes, err := forEach(r.Architectures, log, func(arch string) ([]own, error) {
		if len(lock[arch]) == 0 {
			return nil, fmt.Errorf("%s has no packages for this architecture: rewrite it with `bin/box release --lock`", debianLockPath(root))
		}
		b := &builder{layout: l.For(arch), root: root, log: log, arch: arch, pinned: lock[arch]}
		return b.released(ctx, r.Version)
	})
	if err != nil {
		return err
	}
	return r.write(names, indexes, redis, log)
}

// check validates the release's settings and returns the reference of Redis's image.
func (r Release) check(root string) (redis string, err error) {
	if r.Registry == "" || r.Version == "" {
		return "", fmt.Errorf("registry %q, version %q: a release needs both, such as ghcr.io/example/libra and 0.1.0", r.Registry, r.Version)
	}
	// As the files of the release want it: images must not be pushed for a release that cannot be made.
	if v, err := version.ParseSemantic(r.Version); err != nil || v.String() != r.Version {
		return "", fmt.Errorf("version %q: want a semantic version without a v, such as 0.1.0 or 0.2.0-rc.1", r.Version)
	}
	if _, err := name.NewTag(r.named("libra-agent")); err != nil {
		return "", fmt.Errorf("registry %q and version %q do not make the name of an image: %w", r.Registry, r.Version, err)
	}
	return redisReference(root)
}

func (r Release) repository(image string) string {
	return strings.TrimSuffix(r.Registry, "/") + "/" + image
}

func (r Release) named(image string) string { return r.repository(image) + ":" + r.Version }

// redisReference returns the image of the Redis that the manifests install.
func redisReference(root string) (string, error) {
	path := filepath.Join(root, "manifests/base/redis/deployment.yaml")
	objects, err := readObjects(path)
	if err != nil {
		return "", err
	}
	deployment, err := find(objects, "Deployment", "redis")
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	var reference string
	if err := editContainer(deployment, func(c map[string]any) error {
		reference, _ = c["image"].(string)
		return nil
	}); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if _, digest, ok := strings.Cut(reference, "@sha256:"); !ok || digest == "" {
		return "", fmt.Errorf("%s: the image of Redis is %q; it must be named by digest", path, reference)
	}
	return reference, nil
}

// released builds the images of a release.
func (b *builder) released(ctx context.Context, version string) ([]own, error) {
	images, err := b.programs(ctx, "", build.Options{LDFlags: []string{"-X libra.dev/libra/pkg/kubectl.Version=" + version}}, parts...)
	if err != nil {
		return nil, err
	}
	functions, err := sampleBinaries(b.root)
	if err != nil {
		return nil, err
	}
	sampled, err := b.programs(ctx, "", build.Options{}, functions...)
	if err != nil {
		return nil, err
	}
	images = append(images, sampled...)
	scheduler := extras["scheduler"]
	more, err := b.programs(ctx, scheduler.dir, scheduler.options, scheduler.local...)
	if err != nil {
		return nil, err
	}
	predictor, err := b.predictorOf(ctx)
	return append(append(images, more...), predictor), err
}

func (r Release) write(names []string, indexes map[string]image.Index, redis string, log Logf) error {
	annotations := map[string]string{
		"org.opencontainers.image.version":  r.Version,
		"org.opencontainers.image.source":   "https://libra.dev/libra",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	references := map[string]string{"redis": redis}
	var components Components
	var images []image.Named
	for _, n := range names {
		index, err := indexes[n].OCI(annotations)
		if err != nil {
			return fmt.Errorf("image %s: %w", n, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return fmt.Errorf("image %s: %w", n, err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return fmt.Errorf("image %s: %w", n, err)
		}
		for i, one := range indexes[n] {
			in, err := one.Components()
			if err != nil {
				return fmt.Errorf("image %s: %w", n, err)
			}
			of := manifest.Manifests[i]
			components.Images = append(components.Images, ImageComponents{
				Name: n, Architecture: of.Platform.Architecture, Digest: of.Digest.String(), Components: in,
			})
		}
		references[n] = r.repository(n) + "@" + digest.String()
		images = append(images, image.Named{Name: r.named(n), Index: index})
		log("%s: %s", n, digest)
	}
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return err
	}
	if err := image.WriteLayout(r.Layout(), images...); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(r.Out, "components.json"), components); err != nil {
		return err
	}
	return writeJSON(filepath.Join(r.Out, "images.json"), references)
}

// Push sends what Build made to the registry.
func (r Release) Push(ctx context.Context, log Logf) error {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	return image.PushLayout(ctx, r.Layout(), func(name string) { log("%s: pushed", name) })
}
