// Package cgroup reads the limits of one running container in the kernel, and sets that of
// CPU, on cgroup v1 and v2. A limit of memory is for the kubelet to set, which looks at what is in
// use, and for the runtime and systemd to know of.
//
// The files of a container are found once and stay open: a reading costs one system
// call a file and a write one more than it has to know, so that either takes tens of
// microseconds. Neither the kubelet nor the runtime hears of a write, and whatever
// they set later replaces it.
package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"libra.dev/libra/pkg/api"
)

// ErrNotFound is a container that has no cgroup: it has ended.
var ErrNotFound = errors.New("it has no cgroup")

// Gone says that an error means that a cgroup or a thread has ended, or was closed.
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

// Container is the cgroup of one container. When that has ended, reads and writes
// fail with ENODEV, after Close with os.ErrClosed. Not for concurrent use.
type Container interface {
	// Read does not allocate.
	Read() (Reading, error)

	// ReadUse is Read without the Limit, at half of its cost, and CPU and CPULimit what
	// Read has of those alone, at a tenth of it and a fifth. 0 is no limit.
	ReadUse() (Reading, error)
	CPU() (time.Duration, error)
	CPULimit() (milli int64, err error)

	// SetCPU limits CPU time to so many thousandths of a core, at least 1 ms in each
	// period, as the kubelet does; 0 is no limit. The period stays what it is.
	SetCPU(milli int64) error

	// GuardMemory has the kernel slow the container down, and reclaim its caches, while it
	// uses more memory than so many bytes (memory.high); 0 ends that. Where the kernel cannot,
	// which is on v1, the error is errors.ErrUnsupported. MemoryGuard is what is set, by
	// whomever; 0 is nothing.
	GuardMemory(bytes int64) error
	MemoryGuard() (bytes int64, err error)

	// Reclaimer opens what takes memory from the container, and is to be closed. Where the kernel has
	// no such thing (v1, before Linux 5.19, without PSI), the error is errors.ErrUnsupported.
	Reclaimer() (Reclaimer, error)

	// Attainable is what Read will report once a CPU limit is set: they have a least. Zero
	// stays zero.
	Attainable(milli int64) int64

	// PodLimit is the limit on the pod as a whole, which binds the container whatever
	// its own says; zero where there is none. The kubelet sets one when all containers
	// of the pod have limits.
	PodLimit() (api.Resources, error)

	// PodWeight opens the CPU weight of the container's pod, which stays when the
	// container ends. The caller closes it.
	PodWeight() (PodWeight, error)

	Close() error
}

// IsV2 says which version of cgroups is mounted at root.
func IsV2(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}

// Open finds a container's cgroup by the container's id below root, which is where
// cgroups are mounted. Where it is mounted read-only the container can be read but
// not set. It fails with ErrNotFound when there is no such container.
func Open(root, containerID string) (Container, error) {
	if containerID == "" {
		return nil, errors.New("looking for a container's cgroup: the container's id is empty")
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
