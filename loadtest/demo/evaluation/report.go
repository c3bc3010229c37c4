package evaluation

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// WriteReport writes into dir what came out: as a page with plots, as Markdown and as
// numbers for machines. The short of it goes to out.
func WriteReport(dir string, out io.Writer, title string, d Data) error {
	c, err := compare(d)
	if err != nil {
		return fmt.Errorf("what was measured cannot be compared: %w", err)
	}
	sections := c.document()
	if err := errors.Join(c.results().Write(dir), writePage(dir, title, sections), writeMarkdown(dir, title, sections)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	fmt.Fprintln(out)
	if err := writeText(out, sections); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Report: %s\n", filepath.Join(dir, PageFile))
	return err
}
