//go:build install

package install

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReleasesAreTheSame makes the images of a release for all architectures twice. Both share only the sources and what Go
// and pip have downloaded. It needs no box. Each release fails if a program is for another architecture than its image.
func TestReleasesAreTheSame(t *testing.T) {
	u := &user{T: t, took: map[string]float64{}}
	u.run(root, "make", "bin/box")
	// An earlier run may have left the cache of other code.
	cache := filepath.Join(*outPath, "same", "cache")
	if err := os.RemoveAll(cache); err != nil {
		t.Fatal(err)
	}
	var digests [2]map[string]string
	for i := range digests {
		dir := filepath.Join(*outPath, "same", string(rune('1'+i)))
		box, err := filepath.Abs(filepath.Join(root, "bin/box"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), box, "release", "--registry", "registry.test/libra", "--version", version, "--arch", "amd64,arm64", "--out", dir)
		cmd.Dir = root
		cmd.Env = os.Environ()
		if i > 0 {
			cmd.Env = append(cmd.Env, "LIBRA_BOX_CACHE="+cache)
		}
		u.step("release "+string(rune('1'+i)), func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
		text, err := os.ReadFile(filepath.Join(dir, "images.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &digests[i]); err != nil {
			t.Fatal(err)
		}
	}
	equal := maps.Equal(digests[0], digests[1])
	u.record(map[string]any{"digests_equal": equal, "digests": len(digests[0]), "digests_seconds": u.took})
	if !equal || len(digests[0]) == 0 {
		t.Errorf("the first release has %v, the second %v", digests[0], digests[1])
	}
}
