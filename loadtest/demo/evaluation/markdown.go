package evaluation

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// MarkdownFile is the name of the report without plots.
const MarkdownFile = "report.md"

// cell escapes what ends a Markdown cell or its line.
var cell = strings.NewReplacer("|", "\\|", "\n", " ", "<", "&lt;")

func writeMarkdown(dir, title string, sections []section) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n\nThe plots are in %s.\n", title, PageFile)
	line := func(cells []string) {
		for _, text := range cells {
			fmt.Fprintf(&out, "| %s ", cell.Replace(text))
		}
		fmt.Fprintln(&out, "|")
	}
	for _, s := range sections {
		fmt.Fprintf(&out, "\n## %s\n", s.Title)
		for _, text := range s.Text {
			fmt.Fprintf(&out, "\n%s\n", text)
		}
		for _, t := range s.Tables {
			if len(t.Rows) == 0 {
				continue
			}
			if t.Caption != "" {
				fmt.Fprintf(&out, "\n%s:\n", t.Caption)
			}
			fmt.Fprintln(&out)
			line(t.Head)
			fmt.Fprintln(&out, strings.Repeat("|---", len(t.Head))+"|")
			for _, row := range t.Rows {
				line(row)
			}
		}
	}
	return os.WriteFile(filepath.Join(dir, MarkdownFile), out.Bytes(), 0o644)
}

// writeText writes the brief sections, for a terminal.
func writeText(w io.Writer, sections []section) error {
	for _, s := range sections {
		if !s.brief {
			continue
		}
		fmt.Fprintf(w, "%s\n\n", s.Title)
		for _, t := range s.Tables {
			if len(t.Rows) == 0 {
				continue
			}
			if t.Caption != "" {
				fmt.Fprintf(w, "%s:\n", t.Caption)
			}
			columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, row := range append([][]string{t.Head}, t.Rows...) {
				fmt.Fprintln(columns, strings.Join(row, "\t"))
			}
			if err := columns.Flush(); err != nil {
				return err
			}
			fmt.Fprintln(w)
		}
		for _, text := range s.Text {
			fmt.Fprintln(w, text)
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	return nil
}
