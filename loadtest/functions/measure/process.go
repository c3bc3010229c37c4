package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// upWithin is how long a function may take until it listens.
const upWithin = 20 * time.Second

// process is a function that runs.
type process struct {
	cmd *exec.Cmd
	url string
}

// start runs a program and waits until it listens.
func start(ctx context.Context, program string, env ...string) (*process, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(append(os.Environ(), env...), "PORT="+strconv.Itoa(address.Port))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, url: "http://" + address.String()}
	ctx, cancel := context.WithTimeout(ctx, upWithin)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		if conn, err := net.Dial("tcp", address.String()); err == nil {
			return p, conn.Close()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			p.stop()
			return nil, fmt.Errorf("%s does not listen: %w", program, ctx.Err())
		}
	}
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// cpu is what all threads of the process have used.
func (p *process) cpu() (time.Duration, error) {
	// As clock_getcpuclockid(3) makes it: the scheduler's clock of a process.
	clock := int32(^p.cmd.Process.Pid<<3 | 2)
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", p.cmd.Process.Pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// peakMemory is the most that was resident.
func (p *process) peakMemory() (int, error) {
	path := fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)
	status, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s has no VmHWM", path)
}
