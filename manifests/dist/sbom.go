package dist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// Components are the contents of each image of a release, as `box release` writes them.
type Components struct {
	Images []ImageComponents `json:"images"`
}

// ImageComponents are the contents of an image for one architecture.
type ImageComponents struct {
	Name         string      `json:"name"`
	Architecture string      `json:"architecture"`
	Digest       string      `json:"digest"`
	Components   []Component `json:"components"`
}

// Component is a Go module, a Python package or a Debian package.
type Component struct {
	// Type is the type in its package URL: golang, pypi or deb.
	Type         string `json:"type"`
	Name         string `json:"name"`
	Version      string `json:"version"`
	Architecture string `json:"architecture,omitempty"`
}

// ReadComponents reads the contents of the images from a JSON file.
func ReadComponents(path string) (Components, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Components{}, fmt.Errorf("reading the components, which `bin/box release` writes: %w", err)
	}
	var c Components
	if err := json.Unmarshal(data, &c); err != nil {
		return Components{}, fmt.Errorf("components: %s is not what `bin/box release` writes: %w", path, err)
	}
	if len(c.Images) == 0 {
		return Components{}, fmt.Errorf("components: %s names no image", path)
	}
	return c, nil
}

func (i ImageComponents) fileName() string {
	return fmt.Sprintf("sbom/%s_%s.cdx.json", i.Name, i.Architecture)
}

// sbom returns a CycloneDX document. It does not say when it was made, so that the same image has
// the same document.
func (i ImageComponents) sbom(version string) ([]byte, error) {
	if i.Name == "" || i.Architecture == "" || i.Digest == "" || len(i.Components) == 0 {
		return nil, fmt.Errorf("components: an image has the name %q, the architecture %q, the digest %q and %d components; want all of these",
			i.Name, i.Architecture, i.Digest, len(i.Components))
	}
	bom := cdx.NewBOM()
	image := fmt.Sprintf("pkg:oci/%s@%s?arch=%s", i.Name, url.QueryEscape(i.Digest), i.Architecture)
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		BOMRef: image, Type: cdx.ComponentTypeContainer, Name: i.Name, Version: version, PackageURL: image,
	}}
	components := []cdx.Component{}
	seen := map[string]bool{}
	for _, c := range i.Components {
		purl, err := c.purl()
		if err != nil {
			return nil, fmt.Errorf("components: image %s: %w", i.Name, err)
		}
		if seen[purl] { // a document's references are unique
			continue
		}
		seen[purl] = true
		components = append(components, cdx.Component{
			BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: c.Name, Version: c.Version, PackageURL: purl,
		})
	}
	bom.Components = &components
	var out bytes.Buffer
	// Few tools read documents of the newest version yet.
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	return out.Bytes(), err
}

// purl returns the component's package URL.
func (c Component) purl() (string, error) {
	if c.Name == "" || c.Version == "" {
		return "", fmt.Errorf("a component of type %q has the name %q and the version %q, want both", c.Type, c.Name, c.Version)
	}
	version := strings.ReplaceAll(url.PathEscape(c.Version), "+", "%2B")
	switch c.Type {
	case "golang":
		return "pkg:golang/" + strings.ToLower(c.Name) + "@" + version, nil
	case "pypi":
		return "pkg:pypi/" + strings.ReplaceAll(strings.ToLower(c.Name), "_", "-") + "@" + version, nil
	case "deb":
		purl := "pkg:deb/debian/" + strings.ReplaceAll(c.Name, "+", "%2B") + "@" + version
		if c.Architecture != "" {
			purl += "?arch=" + c.Architecture
		}
		return purl, nil
	}
	return "", fmt.Errorf("the component %s is of type %q, want golang, pypi or deb", c.Name, c.Type)
}
