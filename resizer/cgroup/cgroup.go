// Package cgroup reads the limits of a running container from the kernel, and sets its CPU limit, on
// cgroup v1 and v2. Memory limits are for the kubelet to set, which checks what is in use, and the
// runtime and systemd have to know them.
//
// The files of a container are found once and stay open. A reading costs one system call per file. A
// write costs one, and those for what it has to read first. Either takes tens of microseconds.
// Neither the kubelet nor the runtime hears of a write, and whatever they set later replaces it.
package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"libra.dev/libra/pkg/api"
)

// ErrNotFound means that a container has no cgroup, because it has ended.
var ErrNotFound = errors.New("no such cgroup")

// Gone reports whether an error means that a cgroup or a thread has ended, or was closed.
func Gone(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, os.ErrClosed) ||
		errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ESRCH)
}

// Reading is what a container's cgroup says at one moment.
type Reading struct {
	CPU              time.Duration // used so far
	Throttled        time.Duration // so far, summed over CPUs
	ThrottledPeriods int64         // so far
	Memory           int64         // bytes that cannot be reclaimed at once
	// Limit is what is in force, zero where there is none.
	Limit api.Resources
}

// Container is the cgroup of one container. Once the container has ended, reads and writes fail with
// ENODEV; after Close, they fail with os.ErrClosed. It is not safe for concurrent use.
type Container interface {
	// Read does not allocate.
	Read() (Reading, error)

	// ReadUse is Read without the Limit, at half of its cost. CPU and CPULimit return only that part
	// of Read, at a tenth and a fifth of its cost. 0 is no limit.
	ReadUse() (Reading, error)
	CPU() (time.Duration, error)
	CPULimit() (milli int64, err error)

	// SetCPU limits CPU time to so many thousandths of a core, at least 1 ms in each period, as the
	// kubelet does; 0 is no limit. It keeps the period.
	SetCPU(milli int64) error

	// GuardMemory has the kernel slow the container down, and reclaim its caches, while it uses more
	// memory than so many bytes (memory.high); 0 ends that. On v1, where the kernel cannot, the error
	// is errors.ErrUnsupported. MemoryGuard returns the guard, whoever set it; 0 is none.
	GuardMemory(bytes int64) error
	MemoryGuard() (bytes int64, err error)

	// Reclaimer returns a Reclaimer of the container, which the caller closes. Where the kernel has
	// no such thing (v1, before Linux 5.19, without PSI), the error is errors.ErrUnsupported.
	Reclaimer() (Reclaimer, error)

	// Attainable returns what Read will report once a CPU limit is set: limits have a minimum. Zero
	// stays zero.
	Attainable(milli int64) int64

	// PodLimit returns the limit on the pod as a whole, which binds the container whatever its own
	// limit is; zero where there is none. The kubelet sets one when all containers of the pod have
	// limits.
	PodLimit() (api.Resources, error)

	// PodWeight opens the CPU weight of the container's pod, which outlives the container. The caller
	// closes it.
	PodWeight() (PodWeight, error)

	Close() error
}

// IsV2 reports whether cgroup v2 is mounted at root, rather than v1.
func IsV2(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}

// Open finds a container's cgroup by the container's ID below root, which is where cgroups are
// mounted. If root is mounted read-only, the container can be read but not set. Open fails with
// ErrNotFound when there is no such container.
func Open(root, containerID string) (Container, error) {
	if containerID == "" {
		return nil, errors.New("looking for a container's cgroup: the container's ID is empty")
	}
	if IsV2(root) {
		dir, err := findContainer(root, containerID)
		if err != nil {
			return nil, err
		}
		return openV2(dir)
	}
	var dirs [3]string
	for i, controller := range []string{"cpu", "cpuacct", "memory"} {
		hierarchy, err := Hierarchy(root, controller)
		if err != nil {
			return nil, err
		}
		if dirs[i], err = findContainer(hierarchy, containerID); err != nil {
			return nil, err
		}
	}
	return openV1(dirs[0], dirs[1], dirs[2])
}
