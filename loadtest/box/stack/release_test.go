package stack

import (
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/image"
	"libra.dev/libra/loadtest/box/layout"
)

// agents is an index of one program for both architectures.
func agents(t *testing.T, machines map[string]elf.Machine) image.Index {
	t.Helper()
	var x image.Index
	for _, arch := range Architectures() {
		dir := t.TempDir()
		program := make([]byte, 64)
		copy(program, elf.ELFMAG)
		binary.LittleEndian.PutUint16(program[18:], uint16(machines[arch]))
		if err := os.WriteFile(filepath.Join(dir, "agent"), program, 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := image.WriteLayer(filepath.Join(dir, "layer.tar"), image.Copy{From: filepath.Join(dir, "agent"), To: "/agent"})
		if err != nil {
			t.Fatal(err)
		}
		img, err := image.New(image.Config{Architecture: arch, Entrypoint: []string{"/agent"}}, l)
		if err != nil {
			t.Fatal(err)
		}
		x = append(x, img)
	}
	return x
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

func TestReleaseWrite(t *testing.T) {
	var first map[string]string
	for range 2 {
		r := Release{Registry: "registry.example/libra/", Version: "1.0.0", Architectures: Architectures(), Out: t.TempDir()}
		x := agents(t, map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64})
		if err := r.write([]string{"libra-agent"}, map[string]image.Index{"libra-agent": x}, "redis:7@sha256:aa", t.Logf); err != nil {
			t.Fatal(err)
		}
		var references map[string]string
		readJSON(t, filepath.Join(r.Out, "images.json"), &references)
		if got := references["libra-agent"]; !strings.HasPrefix(got, "registry.example/libra/libra-agent@sha256:") {
			t.Errorf("libra-agent is %q, want it by digest", got)
		}
		if got := references["redis"]; got != "redis:7@sha256:aa" {
			t.Errorf("redis is %q, want upstream's", got)
		}
		if first == nil {
			first = references
		}
		if diff := cmp.Diff(first, references); diff != "" {
			t.Errorf("a second release of the same (-first +second):\n%s", diff)
		}
		var c Components
		readJSON(t, filepath.Join(r.Out, "components.json"), &c)
		if len(c.Images) != 2 || c.Images[0].Architecture != "amd64" || c.Images[1].Architecture != "arm64" || c.Images[0].Digest == c.Images[1].Digest {
			t.Errorf("components are of %+v, want one entry for each architecture", c.Images)
		}
	}
}

func TestReleaseRefusesOtherPrograms(t *testing.T) {
	r := Release{Registry: "registry.example/libra", Version: "1.0.0", Out: t.TempDir()}
	x := agents(t, map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_X86_64})
	err := r.write([]string{"libra-agent"}, map[string]image.Index{"libra-agent": x}, "", t.Logf)
	if err == nil || !strings.Contains(err.Error(), "image libra-agent: an image for arm64: /agent is for EM_X86_64") {
		t.Errorf("write() error = %v, want one that names the image and its program", err)
	}
	if _, err := os.Stat(r.Layout()); err == nil {
		t.Error("it left a layout of the refused image")
	}
}

func TestReleaseChecksSettings(t *testing.T) {
	for _, tc := range []struct {
		name    string
		release Release
		wantErr string
	}{
		{"no registry", Release{Version: "v1"}, `registry "", version "v1": a release needs both`},
		{"no version", Release{Registry: "ghcr.io/x"}, "a release needs both"},
		{"with a v", Release{Registry: "ghcr.io/x", Version: "v1.0.0"}, `version "v1.0.0": want a semantic version without a v`},
		{"no name", Release{Registry: "ghcr.io/x y", Version: "1.0.0"}, `do not make the name of an image`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.release.Build(t.Context(), layout.Layout{}, t.TempDir(), t.Logf)
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("Build() error = %v, want %q", err, tc.wantErr)
			}
		})
	}
}

func TestRedisReference(t *testing.T) {
	reference, err := redisReference("../../..")
	if err != nil || !strings.HasPrefix(reference, "redis:") || !strings.Contains(reference, "@sha256:") {
		t.Errorf("redisReference() = %q, %v, want the manifest's, by digest", reference, err)
	}
}
