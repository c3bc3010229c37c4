package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"libra.dev/libra/pkg/api"
)

type v2 struct {
	files
	dir          string
	reads        int
	inactive     int64 // bytes
	limit        int64 // bytes of memory, as read last; 0 is none
	periodMicros int64
}

const (
	v2CPUMax = iota
	v2MemoryHigh
	v2MemoryMax
	v2CPUStat
	v2Memory
	v2MemoryStat
)

func openV2(dir string) (*v2, error) {
	c := &v2{dir: dir, periodMicros: usualPeriodMicros}
	if err := c.add(true, filepath.Join(dir, "cpu.max"), filepath.Join(dir, "memory.high")); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := c.add(false,
		filepath.Join(dir, "memory.max"),
		filepath.Join(dir, "cpu.stat"),
		filepath.Join(dir, "memory.current"),
		filepath.Join(dir, "memory.stat"),
	); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Read implements Container.
func (c *v2) Read() (Reading, error) {
	r, err := c.ReadUse()
	if err != nil {
		return r, err
	}
	if r.Limit.CPUMilli, err = c.CPULimit(); err != nil {
		return r, err
	}
	limit, err := c.memoryLimit(v2MemoryMax)
	if err == nil && limit < unlimitedBytes {
		r.Limit.MemoryBytes = limit
	}
	c.limit = r.Limit.MemoryBytes
	return r, err
}

// ReadUse implements Container.
func (c *v2) ReadUse() (Reading, error) {
	var r Reading
	stat, err := c.text(v2CPUStat)
	if err != nil {
		return r, err
	}
	var counters [3]int64
	for i, key := range [...]string{"usage_usec", "throttled_usec", "nr_throttled"} {
		if counters[i], err = c.keyed(v2CPUStat, stat, key); err != nil {
			return r, err
		}
	}
	memory, err := c.int(v2Memory)
	if err != nil {
		return r, err
	}
	if c.reads%statEvery == 0 || c.limit > 0 && 3*memory > 2*c.limit && c.reads%statNearEvery == 0 {
		if err := c.readInactive(); err != nil {
			return r, err
		}
	}
	c.reads++
	return Reading{
		CPU:              time.Duration(counters[0]) * time.Microsecond,
		Throttled:        time.Duration(counters[1]) * time.Microsecond,
		ThrottledPeriods: counters[2],
		Memory:           max(0, memory-c.inactive),
	}, nil
}

// CPULimit implements Container.
func (c *v2) CPULimit() (int64, error) {
	quota, period, err := c.cpuMax(v2CPUMax)
	if err != nil {
		return 0, err
	}
	c.periodMicros = period
	return cpuMilli(quota, period), nil
}

// cpuMax is the quota, 0 for none, and the period, both in microseconds.
func (f *files) cpuMax(i int) (quota, period int64, err error) {
	line, err := f.line(i)
	if err != nil {
		return 0, 0, err
	}
	first, second, _ := bytes.Cut(line, space)
	if period, err = f.parse(i, second); err != nil {
		return 0, 0, err
	}
	if !bytes.Equal(first, none) {
		quota, err = f.parse(i, first)
	}
	return quota, period, err
}

// memoryLimit is in bytes, unlimitedBytes for none.
func (f *files) memoryLimit(i int) (int64, error) {
	line, err := f.line(i)
	if err != nil || bytes.Equal(line, none) {
		return unlimitedBytes, err
	}
	return f.parse(i, line)
}

// CPU implements Container.
func (c *v2) CPU() (time.Duration, error) {
	stat, err := c.text(v2CPUStat)
	if err != nil {
		return 0, err
	}
	micros, err := c.keyed(v2CPUStat, stat, "usage_usec")
	return time.Duration(micros) * time.Microsecond, err
}

// SetCPU implements Container.
func (c *v2) SetCPU(milli int64) error {
	_, period, err := c.cpuMax(v2CPUMax)
	if err != nil {
		return err
	}
	text := append(c.output[:0], none...)
	if milli != 0 {
		quota, err := quotaMicros(milli, period)
		if err != nil {
			return err
		}
		text = strconv.AppendInt(c.output[:0], quota, 10)
	}
	text = append(text, ' ')
	return c.writeLine(v2CPUMax, strconv.AppendInt(text, period, 10))
}

// GuardMemory implements Container.
func (c *v2) GuardMemory(bytes int64) error {
	if bytes == 0 {
		return c.writeLine(v2MemoryHigh, append(c.output[:0], none...))
	}
	return c.writeInt(v2MemoryHigh, bytes)
}

// MemoryGuard implements Container.
func (c *v2) MemoryGuard() (int64, error) {
	high, err := c.memoryLimit(v2MemoryHigh)
	if err != nil || high >= unlimitedBytes {
		return 0, err
	}
	return high, nil
}

func (c *v2) readInactive() error {
	stat, err := c.text(v2MemoryStat)
	if err != nil {
		return err
	}
	c.inactive, err = c.keyed(v2MemoryStat, stat, "inactive_file")
	return err
}

// Attainable implements Container.
func (c *v2) Attainable(milli int64) int64 { return attainable(milli, c.periodMicros) }

// PodWeight implements Container.
func (c *v2) PodWeight() (PodWeight, error) { return OpenPodWeight(filepath.Dir(c.dir)) }

// PodLimit implements Container.
func (c *v2) PodLimit() (api.Resources, error) {
	dir := filepath.Dir(c.dir)
	var limit api.Resources
	pod := &files{}
	defer pod.Close() //nolint:errcheck // read only
	if err := pod.add(false,
		filepath.Join(dir, "cpu.max"),
		filepath.Join(dir, "memory.high"),
		filepath.Join(dir, "memory.max"),
	); err != nil {
		return limit, fmt.Errorf("reading the limits of the pod: %w", err)
	}
	quota, period, err := pod.cpuMax(v2CPUMax)
	if err != nil {
		return limit, fmt.Errorf("reading the limits of the pod: %w", err)
	}
	limit.CPUMilli = cpuMilli(quota, period)
	for _, i := range [...]int{v2MemoryHigh, v2MemoryMax} {
		bytes, err := pod.memoryLimit(i)
		if err != nil {
			return limit, fmt.Errorf("reading the limits of the pod: %w", err)
		}
		if bytes < unlimitedBytes && (limit.MemoryBytes == 0 || bytes < limit.MemoryBytes) {
			limit.MemoryBytes = bytes
		}
	}
	return limit, nil
}
