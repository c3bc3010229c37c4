// Package containers reads the cgroups of the box's containers and finds their
// processes, from the machine that the box runs on. It shares no code with the node
// agent, so that it can check what the agent does.
package containers

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"libra.dev/libra/pkg/api"
)

// mountPoint is where the machine mounts its cgroups, and boxFolder the box's own
// folder in each hierarchy.
const (
	mountPoint = "/sys/fs/cgroup"
	boxFolder  = "libra-box"
)

// Container is a container of the box. It has one folder on cgroup v2, and one in each
// hierarchy on v1.
type Container struct {
	ID                string
	v2                bool
	cpu, memory, pids string
}

// Find finds a running container by its ID.
func Find(id string) (Container, error) { return findBelow(mountPoint, id) }

func findBelow(root, id string) (Container, error) {
	if id == "" {
		return Container{}, fmt.Errorf("the container has no ID, and so no cgroup: it has not been started yet")
	}
	c := Container{ID: id}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		dir, err := findDir(root, id)
		c.v2, c.cpu, c.memory, c.pids = true, dir, dir, dir
		return c, err
	}
	for hierarchy, dir := range map[string]*string{"cpu": &c.cpu, "memory": &c.memory, "pids": &c.pids} {
		var err error
		if *dir, err = findDir(filepath.Join(root, hierarchy), id); err != nil {
			return Container{}, err
		}
	}
	return c, nil
}

// findDir returns the folder of a container of the box under one hierarchy.
func findDir(hierarchy, id string) (string, error) {
	root := filepath.Join(hierarchy, boxFolder)
	found := ""
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == id {
			found = path
			return filepath.SkipAll
		}
		return nil
	})
	if err == nil && found == "" {
		err = fs.ErrNotExist
	}
	if err != nil {
		return "", fmt.Errorf("find the cgroup of container %q under %s: %w", id, root, err)
	}
	return found, nil
}

// Limits returns the limits in force; 0 means no limit. Cgroups count CPU in steps of
// 10 us per period, so that whole milli CPU are exact. On v2 the memory limit is the
// lower of memory.high and memory.max.
func (c Container) Limits() (api.Resources, error) {
	quota, period := "cpu.cfs_quota_us", "cpu.cfs_period_us"
	periodField := 0
	if c.v2 {
		quota, period, periodField = "cpu.max", "cpu.max", 1
	}
	quotaMicros, err := readField(filepath.Join(c.cpu, quota), 0)
	if err != nil {
		return api.Resources{}, err
	}
	periodMicros, err := readField(filepath.Join(c.cpu, period), periodField)
	if err != nil {
		return api.Resources{}, err
	}
	var limits api.Resources
	if quotaMicros > 0 && periodMicros > 0 {
		limits.CPUMilli = quotaMicros * 1000 / periodMicros
	}
	files := []string{"memory.limit_in_bytes"}
	if c.v2 {
		files = []string{"memory.max", "memory.high"}
	}
	for _, file := range files {
		bytes, err := readField(filepath.Join(c.memory, file), 0)
		if err != nil {
			return api.Resources{}, err
		}
		// v1 shows no limit as nearly the largest number.
		if bytes > 0 && bytes < 1<<60 && (limits.MemoryBytes == 0 || bytes < limits.MemoryBytes) {
			limits.MemoryBytes = bytes
		}
	}
	return limits, nil
}

// Pod returns the cgroup of the container's pod. Pods whose folders are in the same
// folder compete for CPU by their weights.
func (c Container) Pod() Pod { return Pod{dir: filepath.Dir(c.cpu), v2: c.v2} }

// OOMKills returns how many processes of the container the kernel has OOM-killed.
func (c Container) OOMKills() (int64, error) {
	file := "memory.oom_control"
	if c.v2 {
		file = "memory.events"
	}
	return readKey(filepath.Join(c.memory, file), "oom_kill")
}

// Processes returns the container's processes. Each holds a handle, so that it never
// refers to another process, and must be released.
func (c Container) Processes() ([]*os.Process, error) {
	path := filepath.Join(c.pids, "cgroup.procs")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("list the processes of container %s: %w", c.ID, err)
	}
	var processes []*os.Process
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 1 {
			return nil, fmt.Errorf("%s lists %q, which is not a process of this PID namespace", path, field)
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			return nil, err
		}
		processes = append(processes, p)
	}
	if len(processes) == 0 {
		return nil, fmt.Errorf("container %s has no process", c.ID)
	}
	return processes, nil
}

// readField reads one field of a file. It returns -1 for "max", which means none.
func readField(path string, field int) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) <= field {
		return 0, &fs.PathError{Op: "read a number of", Path: path, Err: fs.ErrInvalid}
	}
	if fields[field] == "max" {
		return -1, nil
	}
	return strconv.ParseInt(fields[field], 10, 64)
}

// readKey reads the number after key in a file of lines "key number". It returns 0 if
// there is no such line.
func readKey(path, key string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, nil
}
