package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"

	"libra.dev/libra/loadtest/demo/schedule"
)

// PageFile is the name of the page with plots.
const PageFile = "index.html"

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Parse(pageHTML))

// figure is a plot with its title.
type figure struct {
	Title string
	SVG   template.HTML
}

// WritePage writes a page with the table and plots, that needs no other file.
func WritePage(dir string, d Data, c Comparison) error {
	var table bytes.Buffer
	if err := WriteTable(&table, d, c); err != nil {
		return err
	}
	var figures []figure
	add := func(title, svg string, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		if svg != "" {
			figures = append(figures, figure{title, template.HTML(svg)})
		}
		return nil
	}
	for _, f := range schedule.All {
		svg, err := cdfPlot(d, f)
		if err := add("Response times of "+f, svg, err); err != nil {
			return err
		}
	}
	svg, err := limitsPlot(d, schedule.All)
	if err := add("CPU limits of the functions' pods, with Libra", svg, err); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := page.Execute(&out, struct {
		Data
		Table   string
		Figures []figure
	}{d, table.String(), figures}); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, PageFile), out.Bytes(), 0o644)
}
