//go:build e2e

package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"libra.dev/libra/pkg/api"
)

// cgroups are the folders of one container: one in all on cgroup v2, one in each
// hierarchy on v1.
type cgroups struct {
	v2                bool
	cpu, memory, pids string
}

func findCgroups(t *testing.T, containerID string) cgroups {
	t.Helper()
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		dir := findDir(t, root, containerID)
		return cgroups{v2: true, cpu: dir, memory: dir, pids: dir}
	}
	return cgroups{
		cpu:    findDir(t, filepath.Join(root, "cpu"), containerID),
		memory: findDir(t, filepath.Join(root, "memory"), containerID),
		pids:   findDir(t, filepath.Join(root, "pids"), containerID),
	}
}

// findDir returns the folder of a container of the box under one hierarchy.
func findDir(t *testing.T, hierarchy, containerID string) string {
	t.Helper()
	root := filepath.Join(hierarchy, "libra-box")
	found := ""
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == containerID {
			found = path
			return filepath.SkipAll
		}
		return nil
	})
	if err != nil || found == "" {
		t.Fatalf("no cgroup of container %q under %s (%v)", containerID, root, err)
	}
	return found
}

// limits are those in force. A cgroup counts CPU in steps of 10 us a period, which
// millicores divide.
func (c cgroups) limits() (api.Resources, error) {
	quota, period, memory := "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes"
	if c.v2 {
		quota, period, memory = "cpu.max", "cpu.max", "memory.max"
	}
	quotaMicros, err := readField(filepath.Join(c.cpu, quota), 0)
	if err != nil {
		return api.Resources{}, err
	}
	periodField := 0
	if c.v2 {
		periodField = 1
	}
	periodMicros, err := readField(filepath.Join(c.cpu, period), periodField)
	if err != nil {
		return api.Resources{}, err
	}
	memoryBytes, err := readField(filepath.Join(c.memory, memory), 0)
	if err != nil {
		return api.Resources{}, err
	}
	return api.Resources{CPUMilli: quotaMicros * 1000 / periodMicros, MemoryBytes: memoryBytes}, nil
}

func readField(path string, field int) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) <= field {
		return 0, &fs.PathError{Op: "read a number of", Path: path, Err: fs.ErrInvalid}
	}
	return strconv.ParseInt(fields[field], 10, 64)
}

// signal sends sig to every process of a container of the box.
func signal(t *testing.T, containerID string, sig syscall.Signal) {
	t.Helper()
	procs := filepath.Join(findCgroups(t, containerID).pids, "cgroup.procs")
	data, err := os.ReadFile(procs)
	if err != nil {
		t.Fatalf("reading the processes of container %s: %v", containerID, err)
	}
	pids := strings.Fields(string(data))
	if len(pids) == 0 {
		t.Fatalf("container %s has no process to signal", containerID)
	}
	for _, field := range pids {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 1 {
			t.Fatalf("%s lists %q, not a process of this pid namespace", procs, field)
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatalf("signal %v to process %d of container %s: %v", sig, pid, containerID, err)
		}
	}
}
