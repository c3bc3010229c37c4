package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"libra.dev/libra/pkg/api"
)

const (
	// A search that has gone so deep, or seen so many directories, is in a tree that
	// no kubelet makes.
	searchDepth       = 12
	searchDirectories = 50_000

	// unlimitedBytes is above any real memory limit; v1 writes one near the largest
	// number of pages for "none".
	unlimitedBytes = int64(1) << 60

	// statEvery is how many samples share one read of memory.stat, the only file
	// that is long and that changes slowly.
	statEvery = 10
	fileSize  = 16 << 10
)

// reading is what a container's cgroup says at one moment.
type reading struct {
	cpu       time.Duration // used so far
	throttled time.Duration // so far
	memory    int64         // bytes that cannot be reclaimed at once
	limit     api.Resources // zero where there is none
}

// cgroup reads one container. Its files stay open, so that a sample costs one
// system call a file. Not for concurrent use.
type cgroup interface {
	read() (reading, error)
	io.Closer
}

// openCgroup finds a container's cgroup below root, which is where cgroups are
// mounted, by the container's id: the paths of the cgroupfs and the systemd driver,
// and of a kubelet with a cgroup root of its own, all end in a name that holds it.
func openCgroup(root, containerID string) (cgroup, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		dir, err := findContainer(root, containerID)
		if err != nil {
			return nil, err
		}
		return openV2(dir)
	}
	var dirs [3]string
	for i, controller := range []string{"cpu", "cpuacct", "memory"} {
		hierarchy, err := findHierarchy(root, controller)
		if err != nil {
			return nil, err
		}
		if dirs[i], err = findContainer(hierarchy, containerID); err != nil {
			return nil, err
		}
	}
	return openV1(dirs[0], dirs[1], dirs[2])
}

// findHierarchy finds where a v1 controller is mounted, alone or with others.
func findHierarchy(root, controller string) (string, error) {
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
	return "", fmt.Errorf("%s is no cgroup root: it has neither cgroup.controllers (v2) nor a hierarchy for %s (v1)", root, controller)
}

func findContainer(hierarchy, containerID string) (string, error) {
	var found string
	seen := 0
	err := filepath.WalkDir(hierarchy, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went while we looked
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
		return "", fmt.Errorf("container %s has no cgroup below %s", containerID, hierarchy)
	}
	return found, nil
}

// files are the open files of one cgroup.
type files struct {
	open   []*os.File
	buffer [fileSize]byte
}

func (f *files) add(path ...string) error {
	for _, p := range path {
		file, err := os.Open(p)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		f.open = append(f.open, file)
	}
	return nil
}

// Close implements io.Closer.
func (f *files) Close() error {
	var errs []error
	for _, file := range f.open {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// text is valid until the next call.
func (f *files) text(i int) ([]byte, error) {
	n, err := f.open[i].ReadAt(f.buffer[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return bytes.TrimSpace(f.buffer[:n]), nil
}

func (f *files) number(i int) (int64, error) {
	text, err := f.text(i)
	if err != nil {
		return 0, err
	}
	return f.parse(i, text)
}

// keyed is the number beside key in a file of lines "key number"; 0 when there is
// no such line, as without the controller that writes it.
func (f *files) keyed(i int, text []byte, key string) (int64, error) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(key+" ")); ok {
			return f.parse(i, bytes.TrimSpace(value))
		}
	}
	return 0, nil
}

func (f *files) parse(i int, text []byte) (int64, error) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number", f.open[i].Name(), text)
	}
	return n, nil
}

func limitOf(quotaMicros, periodMicros, memoryBytes int64) api.Resources {
	var r api.Resources
	if quotaMicros > 0 && periodMicros > 0 {
		r.CPUMilli = quotaMicros * 1000 / periodMicros
	}
	if memoryBytes < unlimitedBytes {
		r.MemoryBytes = memoryBytes
	}
	return r
}

type v1 struct {
	files
	reads    int
	inactive int64 // bytes
}

const (
	v1CPUStat = iota
	v1Quota
	v1Period
	v1Usage
	v1Memory
	v1MemoryLimit
	v1MemoryStat
)

func openV1(cpu, cpuacct, memory string) (*v1, error) {
	c := &v1{}
	err := c.add(
		filepath.Join(cpu, "cpu.stat"),
		filepath.Join(cpu, "cpu.cfs_quota_us"),
		filepath.Join(cpu, "cpu.cfs_period_us"),
		filepath.Join(cpuacct, "cpuacct.usage"),
		filepath.Join(memory, "memory.usage_in_bytes"),
		filepath.Join(memory, "memory.limit_in_bytes"),
		filepath.Join(memory, "memory.stat"),
	)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *v1) read() (reading, error) {
	var r reading
	usageNanos, err := c.number(v1Usage)
	if err != nil {
		return r, err
	}
	stat, err := c.text(v1CPUStat)
	if err != nil {
		return r, err
	}
	throttledNanos, err := c.keyed(v1CPUStat, stat, "throttled_time")
	if err != nil {
		return r, err
	}
	var numbers [4]int64
	for i, file := range []int{v1Quota, v1Period, v1Memory, v1MemoryLimit} {
		if numbers[i], err = c.number(file); err != nil {
			return r, err
		}
	}
	if c.reads%statEvery == 0 {
		stat, err := c.text(v1MemoryStat)
		if err != nil {
			return r, err
		}
		if c.inactive, err = c.keyed(v1MemoryStat, stat, "total_inactive_file"); err != nil {
			return r, err
		}
	}
	c.reads++
	return reading{
		cpu:       time.Duration(usageNanos),
		throttled: time.Duration(throttledNanos),
		memory:    max(0, numbers[2]-c.inactive),
		limit:     limitOf(numbers[0], numbers[1], numbers[3]),
	}, nil
}

type v2 struct {
	files
	reads    int
	inactive int64 // bytes
}

const (
	v2CPUStat = iota
	v2CPUMax
	v2Memory
	v2MemoryMax
	v2MemoryStat
)

func openV2(dir string) (*v2, error) {
	c := &v2{}
	err := c.add(
		filepath.Join(dir, "cpu.stat"),
		filepath.Join(dir, "cpu.max"),
		filepath.Join(dir, "memory.current"),
		filepath.Join(dir, "memory.max"),
		filepath.Join(dir, "memory.stat"),
	)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *v2) read() (reading, error) {
	var r reading
	stat, err := c.text(v2CPUStat)
	if err != nil {
		return r, err
	}
	usageMicros, err := c.keyed(v2CPUStat, stat, "usage_usec")
	if err != nil {
		return r, err
	}
	throttledMicros, err := c.keyed(v2CPUStat, stat, "throttled_usec")
	if err != nil {
		return r, err
	}
	cpuMax, err := c.text(v2CPUMax)
	if err != nil {
		return r, err
	}
	var quotaMicros, periodMicros int64
	quota, period, _ := bytes.Cut(cpuMax, []byte(" "))
	if string(quota) != "max" {
		if quotaMicros, err = c.parse(v2CPUMax, quota); err != nil {
			return r, err
		}
		if periodMicros, err = c.parse(v2CPUMax, period); err != nil {
			return r, err
		}
	}
	memoryLimit := unlimitedBytes
	memoryMax, err := c.text(v2MemoryMax)
	if err != nil {
		return r, err
	}
	if string(memoryMax) != "max" {
		if memoryLimit, err = c.parse(v2MemoryMax, memoryMax); err != nil {
			return r, err
		}
	}
	memory, err := c.number(v2Memory)
	if err != nil {
		return r, err
	}
	if c.reads%statEvery == 0 {
		stat, err := c.text(v2MemoryStat)
		if err != nil {
			return r, err
		}
		if c.inactive, err = c.keyed(v2MemoryStat, stat, "inactive_file"); err != nil {
			return r, err
		}
	}
	c.reads++
	return reading{
		cpu:       time.Duration(usageMicros) * time.Microsecond,
		throttled: time.Duration(throttledMicros) * time.Microsecond,
		memory:    max(0, memory-c.inactive),
		limit:     limitOf(quotaMicros, periodMicros, memoryLimit),
	}, nil
}
