package cgroup

import (
	"errors"
	"path/filepath"
	"time"

	"libra.dev/libra/pkg/api"
)

type v1 struct {
	files
	cpu, memory  string // directories
	held         heldMemory
	periodMicros int64
}

const (
	v1Quota = iota
	v1MemoryLimit
	v1Period
	v1CPUStat
	v1Usage
	v1Memory
	v1MemoryStat
)

func openV1(cpu, cpuacct, memory string) (*v1, error) {
	c := &v1{cpu: cpu, memory: memory, periodMicros: usualPeriodMicros}
	if err := c.add(true, filepath.Join(cpu, "cpu.cfs_quota_us")); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.add(false,
		filepath.Join(memory, "memory.limit_in_bytes"),
		filepath.Join(cpu, "cpu.cfs_period_us"),
		filepath.Join(cpu, "cpu.stat"),
		filepath.Join(cpuacct, "cpuacct.usage"),
		filepath.Join(memory, "memory.usage_in_bytes"),
		filepath.Join(memory, "memory.stat"),
	); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Read implements Container.
func (c *v1) Read() (Reading, error) {
	r, err := c.ReadUse()
	if err != nil {
		return r, err
	}
	if r.Limit.CPUMilli, err = c.CPULimit(); err != nil {
		return r, err
	}
	memory, err := c.int(v1MemoryLimit)
	if err == nil && memory < unlimitedBytes {
		r.Limit.MemoryBytes = memory
	}
	c.held.limit = r.Limit.MemoryBytes
	return r, err
}

// ReadUse implements Container.
func (c *v1) ReadUse() (Reading, error) {
	var r Reading
	usageNanos, err := c.int(v1Usage)
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
	periods, err := c.keyed(v1CPUStat, stat, "nr_throttled")
	if err != nil {
		return r, err
	}
	memory, err := c.held.read(&c.files, v1Memory, v1MemoryStat, "total_inactive_file")
	if err != nil {
		return r, err
	}
	return Reading{
		CPU:              time.Duration(usageNanos),
		Throttled:        time.Duration(throttledNanos),
		ThrottledPeriods: periods,
		Memory:           memory,
	}, nil
}

// CPULimit implements Container.
func (c *v1) CPULimit() (int64, error) {
	quota, err := c.int(v1Quota)
	if err != nil {
		return 0, err
	}
	if c.periodMicros, err = c.int(v1Period); err != nil {
		return 0, err
	}
	return cpuMilli(quota, c.periodMicros), nil
}

// CPU implements Container.
func (c *v1) CPU() (time.Duration, error) {
	usageNanos, err := c.int(v1Usage)
	return time.Duration(usageNanos), err
}

// SetCPU implements Container.
func (c *v1) SetCPU(milli int64) error {
	quota := int64(-1)
	if milli != 0 {
		period, err := c.int(v1Period)
		if err != nil {
			return err
		}
		if quota, err = quotaMicros(milli, period); err != nil {
			return err
		}
	}
	return c.writeInt(v1Quota, quota)
}

// GuardMemory implements Container.
func (*v1) GuardMemory(int64) error { return errors.ErrUnsupported }

// MemoryGuard implements Container.
func (*v1) MemoryGuard() (int64, error) { return 0, nil }

// Attainable implements Container.
func (c *v1) Attainable(milli int64) int64 { return attainable(milli, c.periodMicros) }

// PodWeight implements Container.
func (c *v1) PodWeight() (PodWeight, error) { return OpenPodWeight(filepath.Dir(c.cpu)) }

// PodLimit implements Container.
func (c *v1) PodLimit() (api.Resources, error) {
	cpu, memory := filepath.Dir(c.cpu), filepath.Dir(c.memory)
	var limit api.Resources
	pod := &files{}
	defer pod.Close() //nolint:errcheck // read only
	if err := pod.add(false,
		filepath.Join(cpu, "cpu.cfs_quota_us"),
		filepath.Join(cpu, "cpu.cfs_period_us"),
		filepath.Join(memory, "memory.limit_in_bytes"),
	); err != nil {
		return limit, err
	}
	var numbers [3]int64
	for i := range numbers {
		var err error
		if numbers[i], err = pod.int(i); err != nil {
			return limit, err
		}
	}
	limit.CPUMilli = cpuMilli(numbers[0], numbers[1])
	if numbers[2] < unlimitedBytes {
		limit.MemoryBytes = numbers[2]
	}
	return limit, nil
}
