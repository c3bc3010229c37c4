// Package reference writes the pages of this folder. Each page has a test beside its sources.
package reference

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Page is a page of tables below a title.
type Page struct{ bytes.Buffer }

// New begins a page with a title and a text.
func New(title, text string) *Page {
	var p Page
	fmt.Fprintf(&p, "# %s\n\n<!-- Written by make generate. -->\n\n%s\n", title, text)
	return &p
}

// Table begins a table, below a heading unless that is empty.
func (p *Page) Table(heading string, columns ...string) {
	if heading != "" {
		fmt.Fprintf(p, "\n## %s\n", heading)
	}
	p.WriteString("\n")
	p.Row(columns...)
	fmt.Fprintf(p, "|%s\n", strings.Repeat("---|", len(columns)))
}

// Row adds a row to the table, with the text of each cell on one line.
func (p *Page) Row(cells ...string) {
	p.WriteString("|")
	for _, cell := range cells {
		fmt.Fprintf(p, " %s |", strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", "\\|"))
	}
	p.WriteString("\n")
}

// Code returns s as code, or "" if s is empty.
func Code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// Check fails t if the file of a name is not this page or, with update, writes the file. root is the root of
// the repository.
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
