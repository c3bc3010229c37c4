package evaluation

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"libra.dev/libra/loadtest/demo/report"
)

// WriteReport writes the results into dir: as a page with plots, as Markdown and as
// numbers for machines. The brief sections, at a glance and the goals, go to out.
func WriteReport(dir string, out io.Writer, title string, d Data) error {
	c, err := compare(d)
	if err != nil {
		return fmt.Errorf("compare the measurements: %w", err)
	}
	if err := c.writeGlance(dir); err != nil {
		return fmt.Errorf("write %s: %w", GlanceFile, err)
	}
	return writeAll(dir, out, title, c.document(), c.results())
}

// WriteDemo does the same with the demo's measurements. Its one table goes to out.
func WriteDemo(dir string, out io.Writer, title string, d Data) error {
	c, err := compare(d)
	if err != nil {
		return fmt.Errorf("compare the measurements: %w", err)
	}
	return writeAll(dir, out, title, c.demoDocument(), c.demoResults())
}

func writeAll(dir string, out io.Writer, title string, sections []section, results report.Results) error {
	if err := errors.Join(results.Write(dir), writePage(dir, title, sections), writeMarkdown(dir, title, sections)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	fmt.Fprintln(out)
	if err := writeText(out, sections); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "Report: %s\n", filepath.Join(dir, PageFile))
	return err
}
