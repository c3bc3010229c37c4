package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
)

func TestStale(t *testing.T) {
	l := layout.Layout{Cache: t.TempDir(), State: t.TempDir()}
	write := func(path, data string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	parts := []string{"knative", "istio"}
	want := func(when, problem string) {
		t.Helper()
		got, err := stale(l, parts)
		if err != nil || !strings.Contains(got, problem) || problem == "" && got != "" {
			t.Errorf("%s: stale() = %q, %v, want %q", when, got, err, problem)
		}
	}
	pilot := build.StampPath(filepath.Join(l.Images(), "pilot.tar"))
	manifest := filepath.Join(l.Manifests(), "knative-1-definitions.yaml")
	write(installedPath(l), `{"parts": ["knative", "istio"]}`)
	if _, err := stale(l, parts); err == nil || !strings.Contains(err.Error(), "box build") {
		t.Errorf("stale() = %v with nothing built, want an error that says what to do", err)
	}
	for _, name := range cluster.Binaries {
		write(build.StampPath(l.Bin(name)), "v1")
	}
	write(pilot, "v1")
	write(manifest, "v1")
	if err := os.Remove(installedPath(l)); err != nil {
		t.Fatal(err)
	}
	want("before the end of the installation", "its installation did not finish")
	if err := noteInstalled(l, parts); err != nil {
		t.Fatal(err)
	}
	want("after it", "")
	parts = append(parts, "kserve")
	want("with another part", "it has knative, istio, not knative, istio, kserve")
	parts = parts[:2]
	// A box is started from neither of these.
	write(filepath.Join(l.Images(), "libra-resizer.tar"), "v2")
	write(build.StampPath(l.Bin("k6")), "v2")
	want("other images of Libra's and tools", "")
	for _, path := range []string{build.StampPath(l.Bin("kubelite")), pilot, manifest} {
		write(path, "v2")
		want("another "+filepath.Base(path), "have been rebuilt")
		write(path, "v1")
		want("the same "+filepath.Base(path), "")
	}
}
