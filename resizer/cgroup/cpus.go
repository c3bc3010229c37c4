package cgroup

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
)

// SharedCPUs returns the CPUs that this process may run on. When the kubelet's static CPU manager gives a container CPUs of
// its own, it takes them from everything else that runs in pods.
func SharedCPUs() (cpus unix.CPUSet, err error) {
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return cpus, fmt.Errorf("reading which CPUs pods share: %w", err)
	}
	return cpus, nil
}

// OnlineCPUs returns how many CPUs the node has in use, those that pods do not share included.
func OnlineCPUs() (int, error) {
	const path = "/sys/devices/system/cpu/online"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading how many CPUs there are: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("reading how many CPUs there are in %s: %w", path, err)
	}
	return online.Size(), nil
}
