package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
)

const (
	// stopTimeout is how long a process may take to clean up. An agent restores every
	// container to what it is owed.
	stopTimeout  = 15 * time.Second
	readyTimeout = 2 * time.Minute
	probeTimeout = 2 * time.Second
	toldLines    = 10
)

// process is a process that this one started, in a process group of its own, so that Ctrl-C
// does not end it before the processes that work with it.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
}

// launch starts a program, which ends with the site.
func (s *site) launch(name, path string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(s.logs, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	p.cmd = exec.Command(path, args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + s.dir}, env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.cmd.Wait() //nolint:errcheck // whoever needs it to run sees that it does not
		close(p.done)
	}()
	s.onClose(func() error {
		p.stop()
		return nil
	})
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal sends a signal to the whole process group, which may be gone.
func (p *process) signal(sig syscall.Signal) { syscall.Kill(-p.pid(), sig) } //nolint:errcheck // see above

// kill ends the process at once.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop asks the process to end, and kills it if it does not.
func (p *process) stop() {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		p.kill()
	}
}

// ended returns an error with the last lines of the log if the process has ended.
func (p *process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v); the end of %s:\n%s", p.name, p.cmd.ProcessState, p.log, lastLines(p.log, toldLines))
	default:
		return nil
	}
}

func lastLines(path string, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close() //nolint:errcheck // read only
	var lines []string
	for in := bufio.NewScanner(f); in.Scan(); {
		if lines = append(lines, in.Text()); len(lines) > n {
			lines = lines[1:]
		}
	}
	return strings.Join(lines, "\n")
}

// awaitReady waits until a process answers a probe.
func (p *process) awaitReady(ctx context.Context, url string) error {
	probe := http.Client{Timeout: probeTimeout}
	failed := func() error { return nil }
	err := rig.Eventually(ctx, readyTimeout, func(ctx context.Context) error {
		if err := p.ended(); err != nil {
			failed = p.ended
			return nil
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		answer, err := probe.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()                                 //nolint:errcheck // read only
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10)) // it is only told
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s: %s", answer.Status, said)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s is not ready (its log is %s): %w", p.name, p.log, err)
	}
	return failed()
}

// cpu returns the CPU time that the process has used so far.
func (p *process) cpu() (time.Duration, error) {
	cpu, err := machine.CPU(p.pid())
	if err != nil {
		err = errors.Join(fmt.Errorf("%s: %w", p.name, err), p.ended())
	}
	return cpu, err
}

func (p *process) memory() (machine.Memory, error) {
	m, err := machine.MemoryOf(p.pid())
	if err != nil {
		err = errors.Join(err, p.ended())
	}
	return m, err
}
