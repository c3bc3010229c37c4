// Package machine is what benches need from the machine that they run on.
package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Main runs a command until it is done or a signal ends it. The command cleans up after itself
// when its terminal is closed, too.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, root.Name()+":", err)
		os.Exit(1)
	}
}

// About describes this machine in one line.
func About() string {
	said := fmt.Sprintf("%d CPUs, %s", runtime.NumCPU(), runtime.GOARCH)
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		said += ", Linux " + unix.ByteSliceToString(name.Release[:])
	}
	if model := CPUModel(); model != "" {
		said += ", " + model
	}
	return said
}

// CPUModel returns the model of this machine's CPU, if the kernel reports it.
func CPUModel() string {
	data, _ := os.ReadFile("/proc/cpuinfo") // without it the model is empty
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// FreeAddress returns an address on the loopback that nobody listens on. Another process may take
// it first. The process that is given it then ends, and says so.
func FreeAddress() (string, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return free.Addr().String(), free.Close()
}

// CPU returns the CPU time that a process has used so far. It is the sum of the user and system
// time in /proc/PID/stat, but in nanoseconds, not hundredths of a second.
func CPU(pid int) (time.Duration, error) {
	const cpuClockSched = 2 // from linux/posix-timers.h, as in clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockSched), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory is a process's resident set in bytes. Besides Anonymous, it is mostly the program.
type Memory struct{ Now, Anonymous, Peak int64 }

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	return parseMemory(string(status))
}

// parseMemory reads /proc/PID/status.
func parseMemory(status string) (Memory, error) {
	var m Memory
	for line := range strings.Lines(status) {
		var into *int64
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "VmRSS":
			into = &m.Now
		case "RssAnon":
			into = &m.Anonymous
		case "VmHWM":
			into = &m.Peak
		default:
			continue
		}
		kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("%s is %q, not a number of kB", key, value)
		}
		*into = kibibytes << 10
	}
	if m.Now == 0 || m.Peak == 0 {
		return Memory{}, errors.New("the process has no VmRSS or no VmHWM")
	}
	return m, nil
}
