package stack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/layout"
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

func TestSampleBinaries(t *testing.T) {
	got, err := sampleBinaries("../../..")
	if err != nil || len(got) != len(samples) || got[0].Name != "libra-fn-"+samples[0] {
		t.Errorf("sampleBinaries() = %v, %v, want those of %v", got, err, samples)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, functionsDir, samples[0]), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := sampleBinaries(root); err == nil || !strings.Contains(err.Error(), functionsDir+"/"+samples[1]) {
		t.Errorf("sampleBinaries() error = %v, want the folder that is missing", err)
	}
}

func TestWithWheels(t *testing.T) {
	const lock = "# As pip left it.\nprotobuf==6.33.6\npsutil==5.9.8\npsutilx==1.0\n"
	if diff := cmp.Diff(lock, string(withWheels("amd64", []byte(lock)))); diff != "" {
		t.Errorf("for amd64 (-want +got):\n%s", diff)
	}
	want := "# As pip left it.\nprotobuf==6.33.6\npsutilx==1.0\n"
	if diff := cmp.Diff(want, string(withWheels("arm64", []byte(lock)))); diff != "" {
		t.Errorf("for arm64 (-want +got):\n%s", diff)
	}
}

func TestPushNamesArchitectures(t *testing.T) {
	for _, archs := range [][]string{nil, {"amd64", "riscv64"}} {
		err := Push(t.Context(), layout.Layout{}, t.TempDir(), "localhost:1/libra", archs, nil, "", t.Logf)
		if err == nil || !strings.HasSuffix(err.Error(), "want some of amd64, arm64") {
			t.Errorf("Push() for %v = %v, want an error that names the architectures", archs, err)
		}
	}
}
