package cgroup

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"libra.dev/libra/pkg/api"
)

type v2 struct {
	files
	dir string
	// inner is the cgroup below dir that has the processes, where the runtime makes one; nil where it
	// does not. The runtime sets each limit in both, and the lower one binds.
	inner        *files
	held         heldMemory
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

// innerName is crun's default name for that cgroup.
const innerName = "container"

const (
	innerCPUMax = iota
	innerCPUStat
	innerMemoryMax
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
	if err := c.openInner(filepath.Join(dir, innerName)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *v2) openInner(dir string) error {
	inner := &files{}
	err := inner.add(true, filepath.Join(dir, "cpu.max"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = inner.add(false, filepath.Join(dir, "cpu.stat"), filepath.Join(dir, "memory.max"))
	}
	c.inner = inner
	return err
}

// Close implements Container.
func (c *v2) Close() error {
	err := c.files.Close()
	if c.inner != nil {
		err = errors.Join(err, c.inner.Close())
	}
	return err
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
	if err == nil && c.inner != nil {
		var inner int64
		inner, err = c.inner.memoryLimit(innerMemoryMax)
		limit = min(limit, inner)
	}
	if err == nil && limit < unlimitedBytes {
		r.Limit.MemoryBytes = limit
	}
	c.held.limit = r.Limit.MemoryBytes
	return r, err
}

// ReadUse implements Container.
func (c *v2) ReadUse() (Reading, error) {
	var r Reading
	stat, err := c.text(v2CPUStat)
	if err != nil {
		return r, err
	}
	usage, err := c.keyed(v2CPUStat, stat, "usage_usec")
	if err != nil {
		return r, err
	}
	throttled, periods, err := c.throttled(v2CPUStat, stat)
	if err != nil {
		return r, err
	}
	if c.inner != nil {
		// The kernel counts each quota separately.
		stat, err := c.inner.text(innerCPUStat)
		if err != nil {
			return r, err
		}
		innerThrottled, innerPeriods, err := c.inner.throttled(innerCPUStat, stat)
		if err != nil {
			return r, err
		}
		throttled, periods = throttled+innerThrottled, periods+innerPeriods
	}
	memory, err := c.held.read(&c.files, v2Memory, v2MemoryStat, "inactive_file")
	if err != nil {
		return r, err
	}
	return Reading{
		CPU:              time.Duration(usage) * time.Microsecond,
		Throttled:        time.Duration(throttled) * time.Microsecond,
		ThrottledPeriods: periods,
		Memory:           memory,
	}, nil
}

// throttled returns how long, in microseconds, and how often the quota held processes up, from a file
// cpu.stat.
func (f *files) throttled(i int, stat []byte) (micros, periods int64, err error) {
	if micros, err = f.keyed(i, stat, "throttled_usec"); err != nil {
		return 0, 0, err
	}
	periods, err = f.keyed(i, stat, "nr_throttled")
	return micros, periods, err
}

// CPULimit implements Container.
func (c *v2) CPULimit() (int64, error) {
	quota, period, err := c.cpuMax(v2CPUMax)
	if err != nil {
		return 0, err
	}
	c.periodMicros = period
	limit := cpuMilli(quota, period)
	if c.inner == nil {
		return limit, nil
	}
	if quota, period, err = c.inner.cpuMax(innerCPUMax); err != nil {
		return 0, err
	}
	if inner := cpuMilli(quota, period); limit == 0 || inner != 0 && inner < limit {
		limit = inner
	}
	return limit, nil
}

// cpuMax returns the quota, 0 for none, and the period, both in microseconds.
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

// memoryLimit returns a limit in bytes, unlimitedBytes for none.
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
	err := c.setCPUMax(v2CPUMax, milli)
	if err == nil && c.inner != nil {
		err = c.inner.setCPUMax(innerCPUMax, milli)
	}
	return err
}

// setCPUMax writes a file cpu.max, unless it says that already: each write grants the quota of a
// whole period anew.
func (f *files) setCPUMax(i int, milli int64) error {
	before, period, err := f.cpuMax(i)
	if err != nil {
		return err
	}
	text := append(f.output[:0], none...)
	var quota int64
	if milli != 0 {
		if quota, err = quotaMicros(milli, period); err != nil {
			return err
		}
		text = strconv.AppendInt(f.output[:0], quota, 10)
	}
	if quota == before {
		return nil
	}
	text = append(text, ' ')
	return f.writeLine(i, strconv.AppendInt(text, period, 10))
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
		return limit, err
	}
	quota, period, err := pod.cpuMax(v2CPUMax)
	if err != nil {
		return limit, err
	}
	limit.CPUMilli = cpuMilli(quota, period)
	for _, i := range [...]int{v2MemoryHigh, v2MemoryMax} {
		bytes, err := pod.memoryLimit(i)
		if err != nil {
			return limit, err
		}
		if bytes < unlimitedBytes && (limit.MemoryBytes == 0 || bytes < limit.MemoryBytes) {
			limit.MemoryBytes = bytes
		}
	}
	return limit, nil
}
