package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/versions"
)

func TestVersionsAreThoseOfGoMod(t *testing.T) {
	for _, tt := range []struct{ gomod, module, want string }{
		{"../go.mod", "k8s.io/kubernetes", "v" + versions.Kubernetes},
		{"../go.mod", "k8s.io/client-go", versions.KubernetesStaging},
		{"../dns/go.mod", "github.com/coredns/coredns", versions.CoreDNS},
	} {
		data, err := os.ReadFile(filepath.FromSlash(tt.gomod))
		if err != nil {
			t.Fatal(err)
		}
		got, err := build.Requirement(data, tt.module)
		if err != nil || got != tt.want {
			t.Errorf("%s requires %s %s (%v), want %s as in versions.go", tt.gomod, tt.module, got, err, tt.want)
		}
	}
}

func TestDigest(t *testing.T) {
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for path, data := range map[string]string{a: "12", b: "3"} {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, err := digest(a, b)
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{a: "1", b: "23"} {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	after, err := digest(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if before == after {
		t.Error("text that moved from one file to the next has the same digest")
	}
	if _, err := digest(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a digest of no file")
	}
}
