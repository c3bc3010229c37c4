package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"libra.dev/libra/pkg/api"
)

type v1 struct {
	files
	cpu, memory  string // directories
	reads        int
	inactive     int64 // bytes
	periodMicros int64
	swaps        bool // whether the kernel limits memory with swap
}

const (
	v1Quota = iota
	v1MemoryLimit
	v1Period
	v1CPUStat
	v1Usage
	v1Memory
	v1MemoryStat
	v1MemorySwapLimit // the last, because it may not be there
)

func openV1(cpu, cpuacct, memory string) (*v1, error) {
	c := &v1{cpu: cpu, memory: memory, periodMicros: usualPeriodMicros}
	if err := c.add(true,
		filepath.Join(cpu, "cpu.cfs_quota_us"),
		filepath.Join(memory, "memory.limit_in_bytes"),
	); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.add(false,
		filepath.Join(cpu, "cpu.cfs_period_us"),
		filepath.Join(cpu, "cpu.stat"),
		filepath.Join(cpuacct, "cpuacct.usage"),
		filepath.Join(memory, "memory.usage_in_bytes"),
		filepath.Join(memory, "memory.stat"),
	); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	err := c.add(true, filepath.Join(memory, "memory.memsw.limit_in_bytes"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, c.Close())
	}
	c.swaps = err == nil
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
	memory, err := c.int(v1Memory)
	if err != nil {
		return r, err
	}
	if c.reads%statEvery == 0 {
		stat, err := c.text(v1MemoryStat)
		if err != nil {
			return r, err
		}
		if c.inactive, err = c.keyed(v1MemoryStat, stat, "total_inactive_file"); err != nil {
			return r, err
		}
	}
	c.reads++
	return Reading{
		CPU:              time.Duration(usageNanos),
		Throttled:        time.Duration(throttledNanos),
		ThrottledPeriods: periods,
		Memory:           max(0, memory-c.inactive),
		Charged:          memory,
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

// SetMemory implements Container.
func (c *v1) SetMemory(bytes, allocation int64) error {
	bytes, allocation, err := c.wholePages(bytes, allocation)
	if err != nil {
		return err
	}
	// The kernel keeps the limit of memory with swap at or above that of memory. The
	// runtime sets both to the same.
	most, swap := max(bytes, allocation), int64(0)
	if c.swaps {
		if swap, err = c.int(v1MemorySwapLimit); err != nil {
			return err
		}
	}
	limited := swap > 0 && swap < unlimitedBytes
	if limited && swap < most {
		if err := c.writeInt(v1MemorySwapLimit, most); err != nil {
			return err
		}
	}
	if !limited || swap <= most {
		return inUse(c.writeInt(v1MemoryLimit, bytes))
	}
	before, err := c.int(v1MemoryLimit)
	if err != nil {
		return err
	}
	if err := c.writeInt(v1MemoryLimit, bytes); err != nil {
		return inUse(err)
	}
	if err := c.writeInt(v1MemorySwapLimit, most); err != nil {
		return inUse(errors.Join(err, c.writeInt(v1MemoryLimit, before)))
	}
	return nil
}

func inUse(err error) error {
	if errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%w than the limit allows: %w", ErrInUse, err)
	}
	return err
}

// Attainable implements Container.
func (c *v1) Attainable(limits api.Resources) api.Resources {
	return c.attainable(limits, c.periodMicros)
}

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
		return limit, fmt.Errorf("reading the limits of the pod: %w", err)
	}
	var numbers [3]int64
	for i := range numbers {
		var err error
		if numbers[i], err = pod.int(i); err != nil {
			return limit, fmt.Errorf("reading the limits of the pod: %w", err)
		}
	}
	limit.CPUMilli = cpuMilli(numbers[0], numbers[1])
	if numbers[2] < unlimitedBytes {
		limit.MemoryBytes = numbers[2]
	}
	return limit, nil
}
