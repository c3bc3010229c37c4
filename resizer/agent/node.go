package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"libra.dev/libra/resizer/cgroup"
)

const (
	// A tenth of a node's CPU and memory is never lent: what is idle now may be
	// needed in a moment.
	reservePart = 10
	// At most 1/memoryPart of a node's memory is on loan at one time, since memory
	// cannot be taken back while it is in use.
	memoryPart = 4
)

// cpuTimes are times of some of the node's CPUs since it started, in ticks.
type cpuTimes struct {
	of          unix.CPUSet
	idle, total uint64
	cpus        int64 // of these, those that are online
}

// idleMilli returns how much CPU was idle between since and t, in milli CPU.
func (t cpuTimes) idleMilli(since cpuTimes) int64 {
	if t.of != since.of || t.cpus != since.cpus || t.total <= since.total || t.idle < since.idle {
		return 0 // no time has passed, or these are other CPUs
	}
	return int64(float64(t.idle-since.idle) / float64(t.total-since.total) * float64(t.cpus) * 1000)
}

// nodeMemory is in bytes.
type nodeMemory struct{ total, free, available int64 }

// readCPUTimes reads the times of the CPUs that pods share: functions have no use for the others.
func readCPUTimes(procRoot string) (cpuTimes, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, "stat"))
	if err != nil {
		return cpuTimes{}, fmt.Errorf("reading the node's idle CPU: %w", err)
	}
	shared, err := cgroup.SharedCPUs()
	if err != nil {
		return cpuTimes{}, fmt.Errorf("reading the node's idle CPU: %w", err)
	}
	t, err := parseCPUTimes(text, shared)
	if err != nil {
		return cpuTimes{}, fmt.Errorf("reading the node's idle CPU in %s/stat: %w", procRoot, err)
	}
	return t, nil
}

func readNodeMemory(procRoot string) (nodeMemory, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, "meminfo"))
	if err != nil {
		return nodeMemory{}, fmt.Errorf("reading the node's memory: %w", err)
	}
	m, err := parseNodeMemory(text)
	if err != nil {
		return nodeMemory{}, fmt.Errorf("reading the node's memory in %s/meminfo: %w", procRoot, err)
	}
	return m, nil
}

// parseCPUTimes adds up the times of CPUs in /proc/stat.
func parseCPUTimes(text []byte, of unix.CPUSet) (cpuTimes, error) {
	// User and nice already include what guests use.
	const idle, ioWait, steal = 3, 4, 7
	t := cpuTimes{of: of}
	for line := range bytes.Lines(text) {
		name, rest, _ := strings.Cut(string(line), " ")
		number, isCPU := strings.CutPrefix(name, "cpu")
		cpu, err := strconv.Atoi(number)
		if !isCPU || err != nil || !of.IsSet(cpu) {
			continue // the line of a CPU that does not count, or of all together, or of something else
		}
		t.cpus++
		for i, field := range strings.Fields(rest) {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return t, fmt.Errorf("field %d of the line of CPU %d is %q, want a number", i+1, cpu, field)
			}
			if i <= steal {
				t.total += n
			}
			if i == idle || i == ioWait {
				t.idle += n
			}
		}
	}
	if t.total == 0 || t.cpus == 0 {
		return t, errors.New("there is no line with the times of a CPU that counts")
	}
	return t, nil
}

// parseNodeMemory reads /proc/meminfo.
func parseNodeMemory(text []byte) (nodeMemory, error) {
	var m nodeMemory
	for line := range bytes.Lines(text) {
		var bytes *int64
		fields := strings.Fields(string(line))
		switch {
		case len(fields) < 2:
			continue
		case fields[0] == "MemTotal:":
			bytes = &m.total
		case fields[0] == "MemFree:":
			bytes = &m.free
		case fields[0] == "MemAvailable:":
			bytes = &m.available
		default:
			continue
		}
		kibibytes, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || kibibytes < 0 || kibibytes > 1<<50 {
			return m, fmt.Errorf("%s is %q, want a number of KiB", fields[0], fields[1])
		}
		*bytes = kibibytes << 10
	}
	if m.total == 0 {
		return m, errors.New("there is no MemTotal line")
	}
	return m, nil
}
