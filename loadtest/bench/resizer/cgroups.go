package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/pkg/api"
)

// mounted is where cgroups are mounted on every node.
const mounted = "/sys/fs/cgroup"

const (
	periodMicros = 100_000
	// removeTimeout is how long the kernel may take to release a cgroup whose processes ended.
	removeTimeout = 10 * time.Second
)

// v1Controllers are the controllers whose hierarchies the agent reads.
var v1Controllers = []string{"cpu", "cpuacct", "memory"}

func isV2() bool {
	_, err := os.Stat(filepath.Join(mounted, "cgroup.controllers"))
	return err == nil
}

// cgroupsWritable returns an error that says why we cannot make cgroups.
func cgroupsWritable() error {
	dirs := []string{mounted}
	if !isV2() {
		dirs = nil
		for _, controller := range v1Controllers {
			dirs = append(dirs, filepath.Join(mounted, controller))
		}
	}
	for _, dir := range dirs {
		const mayWrite = 2
		if err := syscall.Access(dir, mayWrite); err != nil {
			return fmt.Errorf("cannot write to %s, run this as root: %w", dir, err)
		}
	}
	return nil
}

// cgroups is a node's part of the kernel's cgroups, below a cgroup of our own.
type cgroups struct {
	// root is where the agent thinks that cgroups are mounted, so that it sees nothing else of this
	// machine.
	root string
	v2   bool
	tops []string // our own cgroups: one on v2, one in each hierarchy on v1
	made []string // all of them, parents first
}

// newCgroups makes a cgroup called name, and on v1 links to it in the folder links.
func newCgroups(name, links string) (*cgroups, error) {
	c := &cgroups{v2: isV2()}
	if c.v2 {
		c.root = filepath.Join(mounted, name)
		c.tops = []string{c.root}
		return c, c.make(name)
	}
	c.root = links
	for _, controller := range v1Controllers {
		hierarchy, err := filepath.EvalSymlinks(filepath.Join(mounted, controller))
		if err != nil {
			return c, err
		}
		top := filepath.Join(hierarchy, name)
		c.tops = append(c.tops, top)
		if err := os.Symlink(top, filepath.Join(links, controller)); err != nil {
			return c, err
		}
	}
	return c, c.make("")
}

// make makes a cgroup below ours, and its parents.
func (c *cgroups) make(path string) error {
	for _, top := range c.tops {
		dir := filepath.Join(top, path)
		if c.v2 && path == filepath.Base(top) {
			dir = top
		}
		var missing []string
		for at := dir; ; at = filepath.Dir(at) {
			if _, err := os.Stat(at); err == nil {
				break
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			missing = append(missing, at)
		}
		for _, at := range slices.Backward(missing) {
			if c.v2 {
				if err := writeFile(filepath.Join(filepath.Dir(at), "cgroup.subtree_control"), "+cpu +memory"); err != nil {
					return err
				}
			}
			if err := os.Mkdir(at, 0o755); err != nil {
				return err
			}
			c.made = append(c.made, at)
		}
	}
	return nil
}

// container makes the cgroup of a pod's container as the kubelet does, with limits, and a weight from
// the pods' requests.
func (c *cgroups) container(podUID, id string, limits api.Resources) (container, error) {
	pod := filepath.Join("kubepods", "burstable", "pod"+podUID)
	path := filepath.Join(pod, id)
	if err := c.make(path); err != nil {
		return container{}, err
	}
	quota, shares := limits.CPUMilli*periodMicros/1000, max(2, requests.CPUMilli*1024/1000)
	made := container{}
	for _, top := range c.tops {
		made.dirs = append(made.dirs, filepath.Join(top, path))
	}
	files := map[string]string{}
	if c.v2 {
		files[filepath.Join(c.tops[0], pod, "cpu.weight")] = fmt.Sprint(1 + (shares-2)*9999/262142)
		if limits.CPUMilli > 0 {
			files[filepath.Join(made.dirs[0], "cpu.max")] = fmt.Sprint(quota, " ", periodMicros)
			files[filepath.Join(made.dirs[0], "memory.max")] = fmt.Sprint(limits.MemoryBytes)
		}
	} else {
		files[filepath.Join(c.tops[0], pod, "cpu.shares")] = fmt.Sprint(shares)
		if limits.CPUMilli > 0 {
			files[filepath.Join(made.dirs[0], "cpu.cfs_quota_us")] = fmt.Sprint(quota)
			files[filepath.Join(made.dirs[2], "memory.limit_in_bytes")] = fmt.Sprint(limits.MemoryBytes)
		}
	}
	for path, text := range files {
		if err := writeFile(path, text); err != nil {
			return made, err
		}
	}
	return made, nil
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

// container is the cgroup of a container.
type container struct{ dirs []string }

// add moves a process into the cgroup.
func (c container) add(pid int) error {
	for _, dir := range c.dirs {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// remove removes all cgroups. No process may be left in them.
func (c *cgroups) remove() error {
	var errs []error
	for _, dir := range slices.Backward(c.made) {
		errs = append(errs, rig.Eventually(context.Background(), removeTimeout, func(context.Context) error {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
				return fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}
