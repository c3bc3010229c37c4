package main

import (
	"strings"
	"testing"

	"libra.dev/libra/loadtest/box/layout"
)

func TestReleaseNeedsRegistry(t *testing.T) {
	t.Setenv(layout.CacheEnv, t.TempDir())
	root := newRoot()
	root.SetArgs([]string{"release", "--version", "1.0.0", "--out", t.TempDir()})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), `registry ""`) {
		t.Errorf("error %v, want one that names the registry", err)
	}
}
