package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// restartTimeout is for a process to be killed and another to be started, not for what it
// does then.
const restartTimeout = 10 * time.Second

// Restart kills one of the node's components and has init start it again, as a
// machine's own init does when one has crashed.
func (c Cluster) Restart(ctx context.Context, name string) error {
	names := ComponentNames()[1:] // init itself cannot be
	if !slices.Contains(names, name) {
		return fmt.Errorf("%.64q is no component that can be restarted, want %s", name, strings.Join(names, ", "))
	}
	init, found, err := findInit(c.Layout)
	if err != nil {
		return err
	}
	if !found {
		return ErrNotRunning
	}
	defer init.close()
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()

	before, err := c.stateOf(name)
	if err != nil {
		return err
	}
	if before.Exit == "" {
		if err := c.killComponent(ctx, init, before); err != nil {
			return err
		}
	}
	err = poll(ctx, 10*time.Millisecond, func() (bool, string, error) {
		now, err := c.stateOf(name)
		return now.Exit != "", "init to tell that " + name + " ended", err
	})
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(init.fd, again, nil, 0); err != nil {
		return fmt.Errorf("ask init to start %s again: %w", name, err)
	}
	return poll(ctx, 10*time.Millisecond, func() (bool, string, error) {
		now, err := c.stateOf(name)
		return now.Exit == "" && now.PID != before.PID,
			"init to start " + name + " again (that of an older box cannot: `box down` and `box up` bring this one's)", err
	})
}

func (c Cluster) killComponent(ctx context.Context, init process, s componentState) error {
	running, err := children(init.pid)
	if err != nil {
		return err
	}
	u, ok := running[s.PID]
	if !ok {
		return nil // it has just ended
	}
	fd, err := unix.PidfdOpen(u.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d of %s: %w", u.pid, s.Name, err)
	}
	p := process{pid: u.pid, fd: fd}
	defer p.close()
	// The pid may have changed hands before it was opened.
	if still, err := children(init.pid); err != nil || still[s.PID].pid != u.pid {
		return err
	}
	return p.kill(ctx)
}

// stateOf is what init tells of a component. While it is being started again, init tells
// nothing.
func (c Cluster) stateOf(name string) (componentState, error) {
	states, err := readStates(c.Layout)
	for _, s := range states {
		if s.Name == name {
			return s, err
		}
	}
	return componentState{Name: name, Exit: "not there"}, err
}
