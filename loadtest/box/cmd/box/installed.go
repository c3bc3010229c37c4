package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"libra.dev/libra/loadtest/box/build"
	"libra.dev/libra/loadtest/box/cluster"
	"libra.dev/libra/loadtest/box/layout"
)

// installed is what a box was started from.
type installed struct {
	Built string   `json:"built"`
	Parts []string `json:"parts"`
}

// installedPath is the file of installed. It is written last, and goes with the run's other files.
func installedPath(l layout.Layout) string { return filepath.Join(l.Run(), "stack-installed") }

func noteInstalled(l layout.Layout, parts []string) error {
	digest, err := built(l)
	if err != nil {
		return err
	}
	data, err := json.Marshal(installed{digest, parts})
	if err != nil {
		return err
	}
	return os.WriteFile(installedPath(l), data, 0o644)
}

// readInstalled returns what a box was installed from, without parts if that did not finish.
func readInstalled(l layout.Layout) (is installed, err error) {
	data, err := os.ReadFile(installedPath(l))
	if errors.Is(err, fs.ErrNotExist) {
		return is, nil
	}
	if err != nil {
		return is, err
	}
	if err := json.Unmarshal(data, &is); err != nil { // another box's command wrote it
		return installed{}, nil
	}
	return is, nil
}

// stale says why a running box is not the one that `box up` would start now, with these parts; it
// is empty if it is.
func stale(l layout.Layout, parts []string) (string, error) {
	is, err := readInstalled(l)
	if err != nil {
		return "", err
	}
	if len(is.Parts) == 0 {
		return "its installation did not finish", nil
	}
	if !slices.Equal(is.Parts, parts) {
		return fmt.Sprintf("it has %s, not %s", strings.Join(is.Parts, ", "), strings.Join(parts, ", ")), nil
	}
	digest, err := built(l)
	if err != nil {
		return "", err
	}
	if is.Built != digest {
		return "its binaries, images or manifests have been rebuilt since it was started", nil
	}
	return "", nil
}

// built identifies what `box build` made: the node's binaries, the images that are not Libra's
// own, and the manifests.
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
			return "", fmt.Errorf("no file matches %s: run `box build`", pattern)
		}
		paths = append(paths, found...)
	}
	digest, err := build.Digest(paths...)
	if err != nil {
		return "", fmt.Errorf("%w: run `box build`", err)
	}
	return digest, nil
}

// printParts prints which parts a box has, if it has any.
func printParts(w io.Writer, l layout.Layout) error {
	is, err := readInstalled(l)
	if err == nil && len(is.Parts) > 0 {
		fmt.Fprintf(w, "stack       %s\n", strings.Join(is.Parts, ", "))
	}
	return err
}
