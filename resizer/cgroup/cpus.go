package cgroup

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SharedCPUs returns the CPUs that this process may run on. When the kubelet's static CPU manager gives a container CPUs of
// its own, it takes them from everything else that runs in pods.
func SharedCPUs() (cpus unix.CPUSet, err error) {
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return cpus, fmt.Errorf("reading which CPUs pods share: %w", err)
	}
	return cpus, nil
}
