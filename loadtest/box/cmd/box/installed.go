package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
)

// installedPath is the file that says from what a box was started. It is
// written last, and goes with the run's other files.
func installedPath(l layout.Layout) string { return filepath.Join(l.Run(), "stack-installed") }

func noteInstalled(l layout.Layout) error {
	digest, err := built(l)
	if err != nil {
		return err
	}
	return os.WriteFile(installedPath(l), []byte(digest), 0o644)
}

// stale says why a box that runs is not the one that `box up` would start now;
// it is empty where it is.
func stale(l layout.Layout) (string, error) {
	installed, err := os.ReadFile(installedPath(l))
	if errors.Is(err, fs.ErrNotExist) {
		return "it was not installed to the end", nil
	}
	if err != nil {
		return "", err
	}
	digest, err := built(l)
	if err != nil {
		return "", err
	}
	if string(installed) != digest {
		return "what it was started from has been built anew since", nil
	}
	return "", nil
}

// built identifies what `box build` made: the node's binaries, the images that
// are not Libra's own, and the manifests.
func built(l layout.Layout) (string, error) {
	var paths []string
	for _, name := range cluster.Binaries {
		paths = append(paths, build.StampPath(l.Bin(name)))
	}
	for _, pattern := range []string{build.StampPath(filepath.Join(l.Images(), "*.tar")), filepath.Join(l.Manifests(), "*.yaml")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		if len(found) == 0 {
			return "", fmt.Errorf("nothing is at %s: run `box build`", pattern)
		}
		paths = append(paths, found...)
	}
	digest, err := build.Digest(paths...)
	if err != nil {
		return "", fmt.Errorf("%w: run `box build`", err)
	}
	return digest, nil
}
