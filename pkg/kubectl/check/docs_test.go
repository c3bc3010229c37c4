package check

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/check.md")

// table is what docs/check.md says of the checks.
func table() string {
	var b strings.Builder
	b.WriteString("| check | looks at |\n|---|---|\n")
	for _, c := range Registry() {
		looks := c.Looks
		if c.installed {
			looks += " *(once Libra is installed)*"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.ID, looks)
	}
	return b.String()
}

func TestThePageHasTheChecks(t *testing.T) {
	const begin, end = "<!-- checks: go test ./pkg/kubectl/check -run ThePageHasTheChecks -update writes them -->\n", "<!-- end of checks -->"
	page := filepath.Join(root, "docs/check.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	is, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the checks, want %q and %q", page, begin, end)
	}
	if want := table(); is != want {
		if *update {
			if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s says\n%s\nwant, which -update writes,\n%s", page, is, want)
	}
}

func TestChecksHaveIDsOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Registry() {
		if c.ID == "" || c.Looks == "" || c.run == nil || seen[c.ID] {
			t.Errorf("check %q is not whole, or is there twice", c.ID)
		}
		seen[c.ID] = true
	}
}
