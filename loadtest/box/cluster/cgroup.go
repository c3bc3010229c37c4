package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cgroupName is the box's folder in every hierarchy. Pods are below it in "kubepods", the
	// node's own processes in cgroupNode. With several nodes, each node has these in its own
	// folder there.
	cgroupName = "libra-box"
	cgroupNode = "node"
)

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	mount       string
	v2          bool
	controllers []string // of a v1 hierarchy, or its name if it has none
}

// cgroupSystem describes the cgroups of this machine.
type cgroupSystem struct {
	hierarchies []hierarchy
	// unified means v2 alone. On a machine with v1 hierarchies that have controllers, the v2 one
	// is left to others.
	unified bool
}

// parseCgroupMounts reads /proc/<pid>/mountinfo.
func parseCgroupMounts(mountinfo io.Reader) (cgroupSystem, error) {
	s := cgroupSystem{unified: true}
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// "36 35 98:0 /root /mount options [optional]... - type source superoptions"
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup":
			h := hierarchy{mount: left[4]}
			for _, option := range strings.Split(right[2], ",") {
				if !slices.Contains([]string{"rw", "ro", "xattr", "clone_children"}, option) && !strings.HasPrefix(option, "release_agent=") {
					h.controllers = append(h.controllers, option)
				}
			}
			s.hierarchies = append(s.hierarchies, h)
			s.unified = false
		case "cgroup2":
			s.hierarchies = append(s.hierarchies, hierarchy{mount: left[4], v2: true})
		}
	}
	return s, lines.Err()
}

func readCgroups() (cgroupSystem, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return cgroupSystem{}, err
	}
	defer f.Close()
	return parseCgroupMounts(f)
}

// missing lists the controllers that pods need and this machine does not offer. v2Controllers is
// the content of cgroup.controllers in the unified root.
func (s cgroupSystem) missing(v2Controllers string) []string {
	needed := []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer"}
	var have []string
	if s.unified {
		// In v2, cpuacct is part of cpu, a BPF program controls devices, and every group can be
		// frozen.
		needed = []string{"cpu", "cpuset", "memory", "pids"}
		have = strings.Fields(v2Controllers)
	}
	for _, h := range s.hierarchies {
		have = append(have, h.controllers...)
	}
	return slices.DeleteFunc(needed, func(c string) bool { return slices.Contains(have, c) })
}

// ours returns the box's folder in each hierarchy.
func (s cgroupSystem) ours() []string {
	var dirs []string
	for _, h := range s.hierarchies {
		dirs = append(dirs, filepath.Join(h.mount, cgroupName))
	}
	return dirs
}

// used returns the hierarchies in which the box has cgroups.
func (s cgroupSystem) used() []hierarchy {
	return slices.DeleteFunc(slices.Clone(s.hierarchies), func(h hierarchy) bool { return h.v2 && !s.unified })
}

// create makes the box's folders and moves pid into them, so that everything the node starts is in
// them too.
func (s cgroupSystem) create(pid int) error {
	for _, h := range s.used() {
		top := filepath.Join(h.mount, cgroupName)
		node := filepath.Join(top, cgroupNode)
		if err := h.make(top, node); err != nil {
			return err
		}
		if err := weigh(top, runtime.NumCPU()); err != nil {
			return err
		}
		if err := enter(node, pid); err != nil {
			return err
		}
	}
	return nil
}

// createAmong makes the folder of one of several nodes, on these CPUs, and moves pid into it. A
// process that makes a cgroup namespace there sees nothing above it.
func (s cgroupSystem) createAmong(m member, cpus []int, pid int) error {
	for _, h := range s.used() {
		box, top := filepath.Join(h.mount, cgroupName), filepath.Join(h.mount, m.cgroup())
		if err := h.make(box, top); err != nil {
			return err
		}
		if err := setCpuset(top, cpus); err != nil {
			return err
		}
		if err := errors.Join(weigh(box, runtime.NumCPU()), weigh(top, len(cpus)), enter(top, pid)); err != nil {
			return err
		}
	}
	return nil
}

// occupy moves this process from the root of its cgroup namespace into a folder beside those of
// the node's pods.
func (s cgroupSystem) occupy() error {
	for _, h := range s.used() {
		node := filepath.Join(h.mount, cgroupNode)
		if err := os.Mkdir(node, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := inheritCpuset(node); err != nil {
			return err
		}
		if err := enter(node, os.Getpid()); err != nil {
			return err
		}
		if h.v2 {
			if err := delegate(h.mount); err != nil {
				return err
			}
		}
	}
	return nil
}

// mountOwn replaces the mounts of the machine's hierarchies with their parts below the root of the
// cgroup namespace. The cgroup and the mount namespace must be new.
func (s cgroupSystem) mountOwn() error {
	for _, h := range s.used() {
		kind, options := "cgroup2", ""
		if !h.v2 {
			kind, options = "cgroup", strings.Join(h.controllers, ",")
			if strings.HasPrefix(options, "name=") {
				options = "none," + options
			}
		}
		if err := unix.Unmount(h.mount, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("take the machine's cgroups off %s: %w", h.mount, err)
		}
		if err := unix.Mount(kind, h.mount, kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount the node's cgroups (%s) on %s: %w", options, h.mount, err)
		}
	}
	return nil
}

// hold holds the same system open, so that cgroups can be made in it when it is no longer seen.
func (s cgroupSystem) hold() (held cgroupSystem, err error) {
	held = cgroupSystem{unified: s.unified}
	for _, h := range s.used() {
		fd, err := unix.Open(h.mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return held, fmt.Errorf("open %s: %w", h.mount, err)
		}
		h.mount = fmt.Sprintf("/proc/self/fd/%d", fd)
		held.hierarchies = append(held.hierarchies, h)
	}
	return held, nil
}

// make makes folders, each inside the one before it.
func (h hierarchy) make(dirs ...string) error {
	for _, dir := range dirs {
		if h.v2 {
			if err := delegate(filepath.Dir(dir)); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := inheritCpuset(dir); err != nil {
			return err
		}
	}
	return nil
}

// enter moves a process into a cgroup.
func enter(dir string, pid int) error {
	procs := filepath.Join(dir, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("move the node's first process into %s: %w", dir, err)
	}
	return nil
}

// setCpuset sets the CPUs of a cgroup that has a cpuset.
func setCpuset(dir string, cpus []int) error {
	path := filepath.Join(dir, "cpuset.cpus")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(path, []byte(cpuList(cpus)), 0o644); err != nil {
		return fmt.Errorf("give %s the CPUs %s: %w", dir, cpuList(cpus), err)
	}
	return nil
}

// weigh gives the box the weight of one outside process on each processor, as a machine gives its
// pods. With more, kernel threads, which are in no cgroup, wait while the node is full. With ten
// times as much, ksoftirqd, which handles packets, waited so long that TCP sent them again, and a
// full node answered nobody for 23 s.
func weigh(dir string, processors int) error {
	for name, weight := range map[string]int{"cpu.shares": 1024 * processors, "cpu.weight": 100 * processors} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			continue // of the other version, or of another controller
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(weight)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// delegate gives the children of a v2 group every controller that it has itself: the kubelet
// refuses to start without a controller that it knows and that the machine's root group offers.
func delegate(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the controllers of the cgroup %s: %w", dir, err)
	}
	var enable []string
	for _, c := range strings.Fields(string(have)) {
		enable = append(enable, "+"+c)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0o644); err != nil {
		return fmt.Errorf("delegate the controllers %s in %s: %w", strings.TrimSpace(string(have)), dir, err)
	}
	return nil
}

// inheritCpuset copies the parent's processors and memory nodes: a new v1 group has none and
// accepts no process.
func inheritCpuset(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(have)) != "" {
			continue
		}
		if err != nil {
			return err
		}
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(parent)) == "" {
			continue // v2: an empty file means the parent's, and the root has none
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), parent, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the box's folders. The processes in them are dead or dying: the kernel refuses
// until the last one is gone.
func (s cgroupSystem) remove(ctx context.Context) error { return removeTrees(ctx, s.ours()) }

// removeNode removes the folders of one of several nodes.
func (s cgroupSystem) removeNode(ctx context.Context, m member) error {
	var dirs []string
	for _, h := range s.hierarchies {
		dirs = append(dirs, filepath.Join(h.mount, m.cgroup()))
	}
	return removeTrees(ctx, dirs)
}

func removeTrees(ctx context.Context, dirs []string) error {
	return poll(ctx, 50*time.Millisecond, func() (bool, string, error) {
		for _, dir := range dirs {
			if err := removeTree(dir); err != nil {
				if errors.Is(err, os.ErrPermission) {
					return false, "", err
				}
				return false, fmt.Sprintf("remove cgroup %s (%v; processes in it: %s)", dir, err, strings.Join(processesIn(dir), " ")), nil
			}
		}
		return true, "", nil
	})
}

// removeTree removes a cgroup and those below it. Their files cannot be removed, and need not be.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	err = os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// processesIn lists the processes in a cgroup and in those below it.
func processesIn(dir string) []string {
	var pids []string
	// Ignore folders that vanish during the walk: the caller waits for that.
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		procs, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err == nil {
			pids = append(pids, strings.Fields(string(procs))...)
		}
		return nil
	})
	return pids
}
