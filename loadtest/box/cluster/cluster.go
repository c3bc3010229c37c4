// Package cluster runs a Kubernetes of one node, or of a control node and
// workers, on plain Linux, without Docker and without systemd.
//
// One process, the node's init, is pid 1 of its own pid, mount and network namespaces, and everything
// else descends from it. The machine itself sees only a veth pair with its routes, one cgroup folder
// and the state folder. Taking the node down means killing that one process and removing those.
//
// A worker is a process that init starts. It is pid 1 of the same kinds of namespaces within init's,
// and of a cgroup namespace. Killing it means losing the node.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/layout"
)

const (
	// NodeName is the name of the control node, or the only one, in Kubernetes.
	NodeName = "box"
	// PauseImage holds the namespaces of every pod.
	PauseImage = "dev.local/pause:1"

	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
	leaveTimeout = 5 * time.Second
	patience     = 30 * time.Second
)

// Cluster is the set of nodes that keep their state in Layout.
type Cluster struct {
	Layout layout.Layout
	// Nodes is the number of nodes that Up starts.
	Nodes int
	// Log takes one line of progress.
	Log func(format string, args ...any)
}

// lockPath is the same for all boxes on a machine, because two would clash in their cgroups, links
// and addresses. The file is empty, and stays.
const lockPath = "/run/libra-box.lock"

// Lock keeps other box commands from changing a node or a cache on this machine
// until unlock is called, or the process ends.
func Lock() (unlock func(), err error) {
	if os.Geteuid() != 0 {
		// Only root changes anything. The preflight says so, with all else.
		return func() {}, nil
	}
	return lock(lockPath)
}

// LockRelease keeps two releases out of one cache. It works for any user. A second release waits for
// its turn until ctx ends.
func LockRelease(ctx context.Context, l layout.Layout, log func(format string, args ...any)) (unlock func(), err error) {
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return nil, err
	}
	said := false
	err = poll(ctx, 200*time.Millisecond, func() (bool, string, error) {
		var held error
		unlock, held = lock(filepath.Join(l.Cache, ".lock"))
		if errors.Is(held, errHeld) && !said {
			said = true
			log("waiting for another release to finish: %v", held)
		}
		if errors.Is(held, errHeld) {
			return false, held.Error(), nil
		}
		return held == nil, "", held
	})
	return unlock, err
}

// errHeld means that another process has the lock.
var errHeld = errors.New("another box command is running")

func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (it holds %s): wait until it is done", errHeld, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// poll calls done, first at once and then every interval, until it returns true, it fails, or ctx
// ends. The error then says what done last waited for.
func poll(ctx context.Context, interval time.Duration, done func() (ok bool, waitingFor string, err error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		ok, waitingFor, err := done()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", waitingFor, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
