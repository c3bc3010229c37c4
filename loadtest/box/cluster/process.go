package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/layout"
)

// initName and nodeName are the box's subcommands that run as pid 1: of the control node, whose
// namespace contains all others, and of a worker.
const (
	initName = "init"
	nodeName = "node"
)

// initArgs returns the arguments of the init of one layout. They also identify it: a pid may belong
// to another process by now.
func initArgs(l layout.Layout) []string {
	return []string{initName, "--state", l.State, "--cache", l.Cache}
}

// stateOfInit returns the state folder of the node whose init has this /proc/<pid>/cmdline and
// status.
func stateOfInit(cmdline, status []byte) (state string, isInit bool) {
	args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	if len(args) != 1+len(initArgs(layout.Layout{})) || !slices.Equal(args[1:3], []string{initName, "--state"}) {
		return "", false
	}
	// Somebody may be printing or editing such a command line. Only init is pid 1 of a namespace
	// below this one.
	pids := namespacePIDs(status)
	return args[3], len(pids) > 1 && pids[len(pids)-1] == 1
}

// namespacePIDs reads a process's pids from its status, this namespace's first.
func namespacePIDs(status []byte) []int {
	for line := range bytes.Lines(status) {
		list, ok := bytes.CutPrefix(line, []byte("NSpid:"))
		if !ok {
			continue
		}
		var pids []int
		for _, f := range bytes.Fields(list) {
			pid, err := strconv.Atoi(string(f))
			if err != nil {
				return nil
			}
			pids = append(pids, pid)
		}
		return pids
	}
	return nil
}

// process holds a descriptor: unlike a pid, it never refers to another process later.
type process struct {
	pid int
	fd  int
}

func (p process) close() { unix.Close(p.fd) }

// findInit finds the running init of the layout.
func findInit(l layout.Layout) (p process, found bool, err error) {
	inits, err := runningInits()
	if err != nil {
		return process{}, false, err
	}
	for pid, state := range inits {
		if state != l.State {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return process{}, false, fmt.Errorf("open process %d: %w", pid, err)
		}
		// The pid may have been reused before it was opened.
		if isInit(pid, l.State) {
			return process{pid: pid, fd: fd}, true, nil
		}
		unix.Close(fd)
	}
	return process{}, false, nil
}

// runningInits returns the state folders of the inits of all boxes on this machine, by pid.
func runningInits() (map[int]string, error) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	inits := map[int]string{}
	for _, dir := range entries {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if state, ok := readInit(pid); ok {
			inits[pid] = state
		}
	}
	return inits, nil
}

// isInit reports whether the process is the init of the node with this state folder.
func isInit(pid int, state string) bool {
	got, ok := readInit(pid)
	return ok && got == state
}

func readInit(pid int) (state string, isInit bool) {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(cmdline, []byte(initName)) {
		return "", false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", false
	}
	return stateOfInit(cmdline, status)
}

// kill ends the process and waits until it is gone. If it is pid 1 of a pid namespace, everything in
// the namespace ends with it.
func (p process) kill(ctx context.Context) error {
	if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	err := poll(ctx, 20*time.Millisecond, func() (bool, string, error) {
		return p.ended(), fmt.Sprintf("process %d has not ended", p.pid), nil
	})
	if err != nil {
		return err
	}
	// Its parent, by now the machine's own init, may take its time to reap it. Nothing can be done
	// about that.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = poll(ctx, 20*time.Millisecond, func() (bool, string, error) {
		return errors.Is(unix.PidfdSendSignal(p.fd, 0, nil, 0), unix.ESRCH), "", nil
	})
	return nil
}

// ended reports whether the process no longer runs, reaped or not.
func (p process) ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// children returns the children of pid, which is pid 1 of its namespace: it maps their pids there to
// those in this namespace.
func children(pid int) (map[int]int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	depth := len(namespacePIDs(status)) - 1
	found := map[int]int{}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // a thread that ended
		}
		for _, field := range strings.Fields(string(data)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", list, err)
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if pids := namespacePIDs(status); len(pids) > depth { // it may be pid 1 of a namespace below
				found[pids[depth]] = child
			}
		}
	}
	return found, nil
}
