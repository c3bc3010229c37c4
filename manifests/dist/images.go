package dist

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Images maps the names that the manifests have for images to references by digest.
type Images map[string]string

// reference matches a repository and a digest. A tag between them tells people the version. Without a registry, the
// repository is one of Docker's, such as that of Redis.
var reference = regexp.MustCompile(`^[a-z0-9][a-zA-Z0-9._:/-]*@sha256:[0-9a-f]{64}$`)

// ReadImages reads a JSON object from image name to reference, as `box release` writes it.
func ReadImages(path string) (Images, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the images, which `bin/box release` writes: %w", err)
	}
	var images Images
	if err := json.Unmarshal(data, &images); err != nil {
		return nil, fmt.Errorf("images: %s is not a JSON object from image name to reference: %w", path, err)
	}
	return images, images.validate()
}

func (im Images) validate() error {
	if len(im) == 0 {
		return errors.New("images: there are none")
	}
	var errs []error
	for _, name := range im.names() {
		if !reference.MatchString(im[name]) {
			errs = append(errs, fmt.Errorf("images: %s is %q, want REGISTRY/%s@sha256: and 64 digits", name, im[name], name))
		}
	}
	return errors.Join(errs...)
}

func (im Images) names() []string { return slices.Sorted(maps.Keys(im)) }

// split returns an image's repository, with a tag if it has one, and its digest.
func (im Images) split(name string) (repository, digest string) {
	repository, digest, _ = strings.Cut(im[name], "@")
	return repository, digest
}
