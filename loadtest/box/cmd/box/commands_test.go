package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHelp(t *testing.T) {
	for _, c := range newRoot().Commands() {
		t.Run(c.Name(), func(t *testing.T) {
			var out strings.Builder
			root := newRoot()
			root.SetOut(&out)
			root.SetArgs([]string{c.Name(), "--help"})
			if err := root.Execute(); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); !strings.Contains(got, "Usage:\n  box "+c.Name()) {
				t.Errorf("help says:\n%s", got)
			}
		})
	}
}

func TestRepository(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	box := filepath.Join(root, "loadtest", "box")
	if err := os.MkdirAll(box, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(box)
	if _, err := repository(); err == nil || !strings.Contains(err.Error(), box) {
		t.Errorf("repository() error = %v, want one that names the folder", err)
	}
	if err := os.WriteFile(filepath.Join(box, "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := repository(); err != nil || got != root {
		t.Errorf("repository() = %q, %v, want %q", got, err, root)
	}
}

func TestPushNeedsWhereTo(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"push", "--out", filepath.Join(t.TempDir(), "images.json")})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), `"to"`) {
		t.Errorf("error %v, want one that names the flag", err)
	}
}
