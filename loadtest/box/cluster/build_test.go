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
		{"../../../activator-plugin/placement/scheduler/go.mod", "k8s.io/kubernetes", "v" + versions.Kubernetes},
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
