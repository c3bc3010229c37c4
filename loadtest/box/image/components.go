package image

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"path"
	"runtime/debug"
	"slices"
	"strings"
)

// Component is a piece of software in an image that is a project of its own.
type Component struct {
	// Type is the type in its package URL: golang, pypi or deb.
	Type string `json:"type"`
	// Name is a Go module's path ("stdlib" for Go's own library), or a package's name.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Architecture is a Debian package's, as Debian names it; it may be "all".
	Architecture string `json:"architecture,omitempty"`
	// Sum is a Go module's checksum in go.sum.
	Sum string `json:"sum,omitempty"`
}

// Components returns what is in the image, from its files: Go programs, the metadata of
// Python packages, and the control data of Debian packages in /var/lib/dpkg/status.d.
func (i Image) Components() ([]Component, error) {
	var all []Component
	for _, l := range i.layers {
		if err := l.files(func(name string, content *io.SectionReader) error {
			components, err := componentsOf(name, content)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, components...)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Component) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	return slices.Compact(all), nil
}

func componentsOf(name string, content *io.SectionReader) ([]Component, error) {
	dir, base := path.Split(name)
	switch {
	case dir == "/var/lib/dpkg/status.d/":
		fields, err := header822(content)
		return []Component{{Type: "deb", Name: fields.Get("Package"), Version: fields.Get("Version"), Architecture: fields.Get("Architecture")}}, err
	case base == "METADATA" && strings.HasSuffix(dir, ".dist-info/"):
		fields, err := header822(content)
		return []Component{{Type: "pypi", Name: fields.Get("Name"), Version: fields.Get("Version")}}, err
	}
	magic := make([]byte, len(elf.ELFMAG))
	if _, err := content.ReadAt(magic, 0); err != nil || string(magic) != elf.ELFMAG {
		return nil, nil
	}
	info, err := buildinfo.Read(content)
	if err != nil {
		return nil, nil // a program, but not Go's
	}
	return goComponents(info), nil
}

func goComponents(info *debug.BuildInfo) []Component {
	all := []Component{{Type: "golang", Name: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		// A dependency without a version or a sum is a folder of this repository.
		if d.Sum != "" {
			all = append(all, Component{Type: "golang", Name: d.Path, Version: d.Version, Sum: d.Sum})
		}
	}
	return all
}

// header822 reads the fields of a Debian or a Python package, up to the first empty line.
func header822(r io.Reader) (textproto.MIMEHeader, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	head, _, _ := bytes.Cut(data, []byte("\n\n"))
	fields := textproto.MIMEHeader{}
	for s := bufio.NewScanner(bytes.NewReader(head)); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), ":")
		if ok && name != "" && !strings.ContainsAny(name, " \t") {
			fields.Add(name, strings.TrimSpace(value))
		}
	}
	if fields.Get("Version") == "" {
		return nil, errors.New("it has no field Version")
	}
	return fields, nil
}
