package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/build"
)

func TestOwnBinaries(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"resizer/cmd/controller", "activator-plugin/cmd/activator", "loadtest/functions/cmd/pagerank"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got, missing, err := ownBinaries(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []build.Binary{
		{Name: "libra-activator", Package: "activator-plugin/cmd/activator"},
		{Name: "libra-resizer", Package: "resizer/cmd/controller"},
		{Name: "libra-fn-pagerank", Package: "loadtest/functions/cmd/pagerank"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ownBinaries() (-want +got):\n%s", diff)
	}
	if missing == nil || !strings.Contains(missing.Error(), "resizer/cmd/agent") || strings.Contains(missing.Error(), "activator") {
		t.Errorf("missing = %v, want only resizer/cmd/agent named", missing)
	}
}
