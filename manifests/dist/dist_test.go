package dist

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// testRelease returns a release whose images do not exist.
func testRelease() Release {
	images := Images{}
	for _, name := range []string{"kubectl-libra", "libra-activator", "libra-agent", "libra-fn-compression", "libra-fn-load", "libra-fn-store", "libra-fn-uploader",
		"libra-predictor", "libra-resizer", "libra-scheduler", "redis",
	} {
		images[name] = fmt.Sprintf("registry.example:5000/libra/%s@sha256:%x", name, sha256.Sum256([]byte(name)))
	}
	return Release{Root: root, Version: "0.1.0", Images: images, Downloads: "https://example.com/libra"}
}

func TestValidateNamesAllThatIsWrong(t *testing.T) {
	r := Release{Root: t.TempDir(), Version: "v1.0", Images: Images{"redis": "registry.example/redis:7"}}
	err := r.Validate()
	if err == nil {
		t.Fatal("it is accepted")
	}
	for _, want := range []string{`version "v1.0"`, `downloads ""`, "no folder manifests", `redis is "registry.example/redis:7", want REGISTRY/redis@sha256:`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if err := testRelease().Validate(); err != nil {
		t.Errorf("the release of these tests is refused: %v", err)
	}
}

func TestReadImages(t *testing.T) {
	digest := strings.Repeat("0", 64)
	for text, want := range map[string]string{
		`{"redis": "registry.example/redis@sha256:` + digest + `"}`:            "",
		`{"redis": "registry.example:5000/a/redis@sha256:` + digest + `"}`:     "",
		`{"redis": "registry.example/redis:7.4@sha256:` + digest[1:] + `"}`:    "redis is",
		`{"redis": "redis:7.4-bookworm@sha256:` + digest + `"}`:                "",
		`{"redis": "redis:7.4-bookworm"}`:                                      "redis is",
		`{"redis": "registry.example/redis:7@sha256:` + digest + `", "b": ""}`: `b is ""`,
		`{}`: "there are none",
		`[]`: "is not a JSON object",
	} {
		path := filepath.Join(t.TempDir(), "images.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadImages(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := ReadImages(filepath.Join(t.TempDir(), "none.json")); err == nil || !strings.Contains(err.Error(), "box release") {
		t.Errorf("a file that is not there: %v, want who writes it", err)
	}
}

func TestChecksumsAreOfAllFilesButImages(t *testing.T) {
	dir := t.TempDir()
	r := Release{Out: dir}
	for _, name := range []string{"b.yaml", "krew/a.yaml", "images/blobs/sha256/0", "images.json", checksumsFile} {
		if err := r.write(name, []byte("what is in "+name)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := checksums(dir)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, name := range []string{"b.yaml", "images.json", "krew/a.yaml"} {
		fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256([]byte("what is in "+name)), name)
	}
	if diff := cmp.Diff(want.String(), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Everybody who builds the same release gets the checksums of its krew manifest.
func TestPluginArchiveIsReproducible(t *testing.T) {
	here := platform{"linux", "amd64"}
	first, err := pluginArchive(t.Context(), root, here, "0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	again, err := pluginArchive(t.Context(), root, here, "0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, again) {
		t.Errorf("two archives differ: %x, %x", sha256.Sum256(first), sha256.Sum256(again))
	}

	dir := t.TempDir()
	path := filepath.Join(dir, "plugin.tar.gz")
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "LICENSE")); err != nil {
		t.Errorf("it has no licence in it: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, pluginName), "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "kubectl-libra 0.1.0 (linux/amd64,") {
		t.Errorf("the plugin says %q (%v), want its version", out, err)
	}
}

func TestPluginArchiveSaysWhatDoesNotBuild(t *testing.T) {
	_, err := pluginArchive(t.Context(), root, platform{"linux", "none"}, "0.1.0")
	if err == nil || !strings.Contains(err.Error(), "linux/none") {
		t.Errorf("%v, want the platform", err)
	}
}
