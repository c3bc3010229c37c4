package apt

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMissing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for name, mode := range map[string]os.FileMode{"runc": 0o755, "not-a-program": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	got := Missing([]Tool{
		{"runc", "runc"}, {filepath.Join(dir, "runc"), "runc"}, {filepath.Join(dir, "not-a-program"), "a"},
		{"not-a-program", "a"}, {"nft", "nftables"}, {filepath.Join(dir, "bridge"), "plugins"},
	})
	want := []Tool{{"not-a-program", "a"}, {"nft", "nftables"}, {filepath.Join(dir, "bridge"), "plugins"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Missing() (-want +got):\n%s", diff)
	}
}

func TestEnsureWithNothingToDo(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir) // without apt-get
	if err := os.WriteFile(filepath.Join(dir, "runc"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Ensure(context.Background(), t.Logf, Tool{"runc", "runc"}); err != nil {
		t.Error(err)
	}
}
