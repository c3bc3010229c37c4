package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"libra.dev/libra/loadtest/box/layout"
)

// restartTimeout bounds killing a process and starting another, but not what that one
// then does.
const restartTimeout = 10 * time.Second

// Restart kills one of a node's components and has the node's first process start it
// again, as a machine's own init does after a crash. An empty node is the control node.
func (c Cluster) Restart(ctx context.Context, node, name string) error {
	m, err := c.member(node)
	if err != nil {
		return err
	}
	names := m.componentNames()[1:] // the first process itself cannot be restarted
	if !slices.Contains(names, name) {
		return fmt.Errorf("%.64q is not a component that can be restarted, want %s", name, strings.Join(names, ", "))
	}
	first, err := c.openFirst(m)
	if err != nil {
		return err
	}
	defer first.close()
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()

	before, err := c.end(ctx, first, m.layout, name)
	if err != nil {
		return err
	}
	return c.startAgain(ctx, first, again, m.layout, before)
}

// openFirst opens a node's first process.
func (c Cluster) openFirst(m member) (process, error) {
	init, found, err := findInit(c.Layout)
	if err != nil {
		return process{}, err
	}
	if !found {
		return process{}, ErrNotRunning
	}
	if !m.isWorker() {
		return init, nil
	}
	defer init.close()
	pid, err := c.firstProcess(init.pid, m)
	if err != nil {
		return process{}, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return process{}, fmt.Errorf("open process %d of node %s: %w", pid, m.name(), err)
	}
	p := process{pid: pid, fd: fd}
	// The pid may have been reused before it was opened.
	if still, err := c.firstProcess(init.pid, m); err != nil || still != pid {
		p.close()
		return process{}, errors.Join(fmt.Errorf("node %s has just ended", m.name()), err)
	}
	return p, nil
}

// end kills a child of a first process unless it has ended. It returns its state before.
func (c Cluster) end(ctx context.Context, first process, l layout.Layout, name string) (before componentState, err error) {
	before, err = c.stateOf(l, name)
	if err != nil {
		return before, err
	}
	if before.Exit == "" {
		if err := c.killComponent(ctx, first, before); err != nil {
			return before, err
		}
	}
	return before, poll(ctx, 10*time.Millisecond, func() (bool, string, error) {
		now, err := c.stateOf(l, name)
		return now.Exit != "", "init has not reported that " + name + " ended", err
	})
}

// startAgain makes a first process start what has ended, and waits for the one in before.
func (c Cluster) startAgain(ctx context.Context, first process, signal unix.Signal, l layout.Layout, before componentState) error {
	if err := unix.PidfdSendSignal(first.fd, signal, nil, 0); err != nil {
		return fmt.Errorf("ask init to start %s again: %w", before.Name, err)
	}
	return poll(ctx, 10*time.Millisecond, func() (bool, string, error) {
		now, err := c.stateOf(l, before.Name)
		return now.Exit == "" && now.PID != before.PID, "init has not started " + before.Name + " again", err
	})
}

func (c Cluster) killComponent(ctx context.Context, init process, s componentState) error {
	running, err := children(init.pid)
	if err != nil {
		return err
	}
	pid, ok := running[s.PID]
	if !ok {
		return nil // it has just ended
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d of %s: %w", pid, s.Name, err)
	}
	p := process{pid: pid, fd: fd}
	defer p.close()
	// The pid may have been reused before it was opened.
	if still, err := children(init.pid); err != nil || still[s.PID] != pid {
		return err
	}
	return p.kill(ctx)
}

// stateOf returns init's report on a component. During a restart there is none.
func (c Cluster) stateOf(l layout.Layout, name string) (componentState, error) {
	states, err := readStates(l)
	for _, s := range states {
		if s.Name == name {
			return s, err
		}
	}
	return componentState{Name: name, Exit: "not there"}, err
}
