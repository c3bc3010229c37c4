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

// writePage writes the report with its plots as a page that needs no other file.
func writePage(dir, title string, sections []section) error {
	type drawn struct {
		section
		Figures []figureDrawn
	}
	var all []drawn
	for _, s := range sections {
		with := drawn{section: s}
		if s.draw != nil {
			var err error
			if with.Figures, err = s.draw(); err != nil {
				return fmt.Errorf("section %q: %w", s.Title, err)
			}
		}
		all = append(all, with)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, struct {
		Title    string
		Sections []drawn
	}{title, all}); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, PageFile), out.Bytes(), 0o644)
}
