package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A search that goes deeper, or sees more directories, is in a tree that no kubelet makes.
const (
	searchDepth       = 12
	searchDirectories = 50_000
)

// Hierarchy returns where a v1 controller is mounted below root, alone or with others.
func Hierarchy(root, controller string) (string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", fmt.Errorf("reading the cgroup root: %w", err)
	}
	for _, e := range entries {
		if slices.Contains(strings.Split(e.Name(), ","), controller) {
			// It may be a link, which a walk would not follow.
			return filepath.EvalSymlinks(filepath.Join(root, e.Name()))
		}
	}
	return "", fmt.Errorf("%s is not a cgroup root: it has neither cgroup.controllers (v2) nor a hierarchy for %s (v1)", root, controller)
}

// findContainer returns the directory of a container. The paths of the cgroupfs driver, of the
// systemd driver, and of a kubelet with a cgroup root of its own all end in a name that holds the
// container's ID.
func findContainer(hierarchy, containerID string) (string, error) {
	var found string
	seen := 0
	err := filepath.WalkDir(hierarchy, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it disappeared meanwhile
			}
			return err
		}
		if !d.IsDir() {
			return nil
		}
		// CRI-O keeps its monitor beside the container, under nearly the same name.
		if strings.Contains(d.Name(), containerID) && !strings.Contains(d.Name(), "conmon") {
			found = path
			return fs.SkipAll
		}
		if seen++; seen > searchDirectories {
			return fmt.Errorf("gave up after %d directories", searchDirectories)
		}
		if depth := strings.Count(path[len(hierarchy):], string(filepath.Separator)); depth >= searchDepth {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("looking for the cgroup of container %s below %s: %w", containerID, hierarchy, err)
	}
	if found == "" {
		return "", fmt.Errorf("container %s was not found below %s: %w", containerID, hierarchy, ErrNotFound)
	}
	return found, nil
}
