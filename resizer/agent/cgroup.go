package agent

import (
	"io"
	"time"

	"libra.dev/libra/pkg/api"
	kernel "libra.dev/libra/resizer/cgroup"
)

// reading is what the agent keeps of a container's cgroup.Reading.
type reading struct {
	cpu       time.Duration // used so far
	throttled time.Duration // so far
	memory    int64         // bytes that cannot be reclaimed at once
	limit     api.Resources // zero where there is none
}

type cgroup interface {
	read() (reading, error)
	io.Closer
}

type opened struct{ kernel.Container }

func (c opened) read() (reading, error) {
	r, err := c.Read()
	return reading{cpu: r.CPU, throttled: r.Throttled, memory: r.Memory, limit: r.Limit}, err
}

func openCgroup(root, containerID string) (cgroup, error) {
	c, err := kernel.Open(root, containerID)
	if err != nil {
		return nil, err
	}
	return opened{c}, nil
}
