package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"libra.dev/libra/pkg/api"
)

const cgroupRoot = "/sys/fs/cgroup"

// scope is the cgroup of a container, as systemd and the runtime made it. It shares no code with
// the node agent, so that it can check what the agent does.
type scope struct{ dir string }

// findScope finds the cgroup of a running container by its id.
func findScope(id string) (scope, error) {
	var found string
	err := filepath.WalkDir(filepath.Join(cgroupRoot, "kubepods.slice"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(entry.Name(), id) {
			found = path
			return filepath.SkipAll
		}
		return nil
	})
	if err == nil && found == "" {
		err = fs.ErrNotExist
	}
	if err != nil {
		return scope{}, fmt.Errorf("find the cgroup of container %.12q: %w", id, err)
	}
	return scope{found}, nil
}

// within returns the folders of the scope and of the cgroups that a runtime may have made in it.
func (s scope) within() (dirs []string) {
	_ = filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// limits returns the limits that bind the container's processes: the lowest ones of the scope
// and of the cgroups in it. 0 means no limit.
func (s scope) limits() (api.Resources, error) {
	var least api.Resources
	for _, dir := range s.within() {
		quota, period, err := readCPUMax(filepath.Join(dir, "cpu.max"))
		if errors.Is(err, fs.ErrNotExist) && dir != s.dir {
			continue // the controller is not enabled there
		}
		if err != nil {
			return least, err
		}
		if quota > 0 {
			least.CPUMilli = lower(least.CPUMilli, quota*1000/period)
		}
		for _, name := range []string{"memory.max", "memory.high"} {
			bytes, err := readNumber(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) && dir != s.dir {
				continue
			}
			if err != nil {
				return least, err
			}
			least.MemoryBytes = lower(least.MemoryBytes, bytes)
		}
	}
	return least, nil
}

// lower returns the lower of two limits, of which 0 means none.
func lower(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

func (s scope) memory() (int64, error) { return readNumber(filepath.Join(s.dir, "memory.current")) }

// weight returns the CPU weight of the container's pod.
func (s scope) weight() (int64, error) {
	return readNumber(filepath.Join(filepath.Dir(s.dir), "cpu.weight"))
}

// signal sends sig to every process of the container.
func (s scope) signal(sig syscall.Signal) error {
	sent := 0
	for _, dir := range s.within() {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil || pid <= 1 {
				return fmt.Errorf("%s lists %q, which is not a process", dir, field)
			}
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			sent++
		}
	}
	if sent == 0 {
		return fmt.Errorf("%s has no process", s.dir)
	}
	return nil
}

// readNumber reads a file with a number. It returns 0 for "max", which means none.
func readNumber(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// readCPUMax reads a quota, 0 for none, and its period, in microseconds.
func readCPUMax(path string) (quota, period int64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	q, p, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	if period, err = strconv.ParseInt(p, 10, 64); err != nil || period <= 0 {
		return 0, 0, fmt.Errorf("%s is %q, want a quota and a period", path, data)
	}
	if q != "max" {
		quota, err = strconv.ParseInt(q, 10, 64)
	}
	return quota, period, err
}

// oomKills returns how many processes the kernel has OOM-killed since it booted, in any cgroup.
func oomKills() (int64, error) {
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, errors.New("/proc/vmstat has no line oom_kill")
}

// cpus returns the CPUs that the container may run on.
func (s scope) cpus() (string, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, "cpuset.cpus.effective"))
	return strings.TrimSpace(string(data)), err
}
