package actuate

import (
	"context"
	"errors"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

type inCgroup struct {
	container cgroup.Container
	owed      int64
}

// Cgroup returns the Actuator that writes to the cgroup of a container whose memory
// allocation is owed bytes. It is for use on the container's node, waits for nothing but
// the kernel, and is no safer for concurrent use than the container is.
func Cgroup(container cgroup.Container, owed int64) Actuator { return inCgroup{container, owed} }

// SetLimits tries each resource whatever became of the other.
func (a inCgroup) SetLimits(_ context.Context, limits api.Resources) error {
	var cpu, memory error
	if limits.CPUMilli != 0 {
		cpu = a.container.SetCPU(limits.CPUMilli)
	}
	if limits.MemoryBytes != 0 {
		memory = a.container.SetMemory(limits.MemoryBytes, a.owed)
	}
	return errors.Join(cpu, memory)
}
