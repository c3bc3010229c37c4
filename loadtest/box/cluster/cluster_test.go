package cluster

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("second lock() = %v, want an error that names the file", err)
	}
	unlock()
	unlock, err = lock(path)
	if err != nil {
		t.Fatalf("lock() after unlock: %v", err)
	}
	unlock()
}
