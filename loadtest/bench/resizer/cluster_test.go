package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The bench takes minutes and is run by hand, so nobody else notices if manifests move away.
func TestAppliedManifestsAreThere(t *testing.T) {
	const root = "../../.."
	for _, what := range applied {
		if _, err := os.Stat(filepath.Join(root, what[1])); err != nil {
			t.Error(err)
		}
	}
}
