// Package reference writes the pages of this folder, each for a test beside the sources that it is of.
package reference

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Page is tables below a title.
type Page struct{ bytes.Buffer }

// New begins a page with a title and a text.
func New(title, text string) *Page {
	var p Page
	fmt.Fprintf(&p, "# %s\n\n<!-- Written by make generate. -->\n\n%s\n", title, text)
	return &p
}

// Table begins one, below a heading unless that is empty.
func (p *Page) Table(heading string, columns ...string) {
	if heading != "" {
		fmt.Fprintf(p, "\n## %s\n", heading)
	}
	p.WriteString("\n")
	p.Row(columns...)
	fmt.Fprintf(p, "|%s\n", strings.Repeat("---|", len(columns)))
}

// Row is one of the table's. What is in a cell is on one line.
func (p *Page) Row(cells ...string) {
	p.WriteString("|")
	for _, cell := range cells {
		fmt.Fprintf(p, " %s |", strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", "\\|"))
	}
	p.WriteString("\n")
}

// Code is s as code; empty if it is.
func Code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// Check holds the page of a name against what its sources say, or writes it. root is that of the repository.
func (p *Page) Check(t testing.TB, root, name string, update bool) {
	t.Helper()
	path := filepath.Join(root, "docs", "reference", name)
	if update {
		if err := os.WriteFile(path, p.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, p.Bytes()) {
		t.Errorf("docs/reference/%s is not what the sources say (%v): run make generate", name, err)
	}
}
