package evaluation

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
)

// PageFile is the name of the page with plots.
const PageFile = "index.html"

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Parse(pageHTML))

// Heading is what a report begins with.
type Heading struct {
	Title string
	Table string // as text, of the page only; empty where there is none
}

// WritePage writes the report with its plots as a page that needs no other file.
func WritePage(dir string, h Heading, d Data, c Comparison) error {
	type drawn struct {
		section
		Figures []figure
	}
	var sections []drawn
	for _, s := range document(d, c) {
		with := drawn{section: s}
		if s.draw != nil {
			var err error
			if with.Figures, err = s.draw(); err != nil {
				return fmt.Errorf("section %q: %w", s.Title, err)
			}
		}
		sections = append(sections, with)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, struct {
		Heading
		Sections []drawn
	}{h, sections}); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, PageFile), out.Bytes(), 0o644)
}
