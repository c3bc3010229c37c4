package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/build"
)

func TestFunctionBinaries(t *testing.T) {
	root := t.TempDir()
	if _, err := functionBinaries(root); err == nil || !strings.Contains(err.Error(), functionsDir) {
		t.Errorf("functionBinaries() error = %v, want one that names the folder", err)
	}
	for _, name := range []string{"pagerank", "uploader"} {
		if err := os.MkdirAll(filepath.Join(root, functionsDir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, functionsDir, "README.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := functionBinaries(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []build.Binary{
		{Name: "libra-fn-pagerank", Package: "loadtest/functions/cmd/pagerank"},
		{Name: "libra-fn-uploader", Package: "loadtest/functions/cmd/uploader"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("functionBinaries() (-want +got):\n%s", diff)
	}
}
