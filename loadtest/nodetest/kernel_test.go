package main

import (
	"os"
	"path/filepath"
	"testing"

	"libra.dev/libra/pkg/api"
)

// The lowest limit set anywhere by the runtime binds.
func TestLimits(t *testing.T) {
	files := map[string]string{
		"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.high": "max\n",
		"container/cpu.max": "50000 100000\n", "container/memory.max": "209715200\n", "container/memory.high": "max\n",
	}
	s := scope{t.TempDir()}
	for name, text := range files {
		path := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(s.dir, "without"), 0o755); err != nil { // any controllers
		t.Fatal(err)
	}
	want := api.Resources{CPUMilli: 500, MemoryBytes: 200 * mebibyte}
	if got, err := s.limits(); err != nil || got != want {
		t.Errorf("limits() = %v, %v, want %v", got, err, want)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "cpu.max"), []byte("30000 100000"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := s.limits(); err != nil || got.CPUMilli != 300 {
		t.Errorf("limits() = %v, %v, want 300m", got, err)
	}
}
