package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoadFolderSaysWhichFilesItWants(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"invocations_per_function_md.anon.d01.csv", "invocations_per_function_md.anon.d02.csv"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := LoadFolder(dir); err == nil || !strings.Contains(err.Error(), "2 files *invocations*.csv") {
		t.Errorf("got %v, want an error that says that there are two days", err)
	}
	if _, err := LoadFolder(t.TempDir()); err == nil || !strings.Contains(err.Error(), "0 files") {
		t.Errorf("got %v, want an error that says that there is none", err)
	}
}

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"invocations.csv": invocationsCSV, "function_durations_percentiles.csv": durationsCSV, "app_memory.csv": memoryCSV} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LoadFolder(dir)
	if err != nil || len(got.Functions) != 2 {
		t.Errorf("got %d functions, %v; want 2", len(got.Functions), err)
	}
}
