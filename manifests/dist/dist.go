// Package dist writes what a release ships beside its images: a file of objects for each thing that
// a user applies, Helm's chart of the same objects, bills of materials, the plugin's archives, and the checksums of all of it.
package dist

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/version"
)

// Release says what to release, and where to.
type Release struct {
	// Root is the root of the repository.
	Root string
	// Out is the folder to write to.
	Out string
	// Version is the release's version, such as 0.1.0.
	Version string
	// Images are the images that the release's objects run.
	Images Images
	// Components are the contents of those images.
	Components Components
	// Downloads is the URL of the folder where the plugin's archives will be.
	Downloads string
}

// Validate returns an error that names everything in r that a release cannot be made of.
func (r Release) Validate() error {
	var errs []error
	if v, err := version.ParseSemantic(r.Version); err != nil || v.String() != r.Version {
		errs = append(errs, fmt.Errorf("version %q: want a semantic version without a v, such as 0.1.0 or 0.2.0-rc.1", r.Version))
	}
	if u, err := url.Parse(r.Downloads); err != nil || u.Scheme != "https" || u.Host == "" {
		errs = append(errs, fmt.Errorf("downloads %q: want an https URL, such as https://example.com/libra/0.1.0", r.Downloads))
	}
	if _, err := os.Stat(filepath.Join(r.Root, "manifests")); err != nil {
		errs = append(errs, fmt.Errorf("no folder manifests in %q: want the root of the repository", r.Root))
	}
	return errors.Join(append(errs, r.Images.validate())...)
}

// Write writes all files of the release, and logs each long step before it begins.
func (r Release) Write(ctx context.Context, log func(format string, args ...any)) error {
	if err := r.Validate(); err != nil {
		return err
	}
	log("rendering %d files of objects and Helm's chart", len(files))
	if err := r.WriteObjects(); err != nil {
		return err
	}
	for _, image := range r.Components.Images {
		data, err := image.sbom(r.Version)
		if err != nil {
			return err
		}
		if err := r.write(image.fileName(), data); err != nil {
			return err
		}
	}
	archives := map[platform][]byte{}
	for _, p := range platforms {
		log("building the plugin for %s", p)
		data, err := pluginArchive(ctx, r.Root, p, r.Version)
		if err != nil {
			return err
		}
		archives[p] = data
		if err := r.write(archiveName(r.Version, p), data); err != nil {
			return err
		}
	}
	manifest, err := krewManifest(r.Version, r.Downloads, archives)
	if err != nil {
		return err
	}
	if err := r.write(krewFile, manifest); err != nil {
		return err
	}
	sums, err := checksums(r.Out)
	if err != nil {
		return err
	}
	return r.write(checksumsFile, sums)
}

// WriteObjects writes the files that a user applies and Helm's chart, and nothing else of the release.
func (r Release) WriteObjects() error {
	for _, f := range files {
		data, err := f.render(r)
		if err != nil {
			return err
		}
		if err := r.write(f.name, data); err != nil {
			return err
		}
	}
	chart, err := r.chart()
	if err != nil {
		return err
	}
	return r.write(r.chartFile(), chart)
}

// write writes a file of the release. Its name may have folders in it.
func (r Release) write(name string, data []byte) error {
	path := filepath.Join(r.Out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
