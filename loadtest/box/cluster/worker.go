package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nodeArgs are the arguments of a worker's first process.
func nodeArgs(w member) []string {
	return []string{nodeName, w.name(), "--state", w.layout.State, "--cache", w.layout.Cache}
}

// workers returns the workers' first processes, which the control node's first process starts.
func (n *node) workers() []component {
	var all []component
	for _, w := range membersOf(n.layout, n.of)[1:] {
		all = append(all, component{name: w.name(), path: "/proc/self/exe", args: nodeArgs(w), worker: &w})
	}
	return all
}

// startWorker starts a worker's first process in namespaces of its own, connects it and lets it go
// on. Until then, that process ends when this one does.
func (n *node) startWorker(cmd *exec.Cmd, w member) error {
	receive, send, err := os.Pipe()
	if err != nil {
		return err
	}
	defer receive.Close()
	defer send.Close()
	cpus, err := machineCPUs()
	if err != nil {
		return err
	}
	o := n.options
	o.Number = w.number
	options, err := json.Marshal(o)
	if err != nil {
		return err
	}
	// Remove what an earlier worker of this name left.
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := n.machine.removeNode(ctx, w); err != nil {
		return err
	}
	cmd.Stdin = receive
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Setsid:     true,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := n.machine.createAmong(w, w.cpus(cpus), cmd.Process.Pid); err != nil {
		return err
	}
	if err := connectWorker(cmd.Process.Pid, w); err != nil {
		return err
	}
	_, err = send.Write(options)
	return err
}

// mountCgroups makes the node see its own cgroups as a machine sees all of its.
func (n *node) mountCgroups() error {
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	if !n.isWorker() {
		if n.machine, err = groups.hold(); err != nil {
			return err
		}
	}
	if err := groups.mountOwn(); err != nil {
		return err
	}
	return groups.occupy()
}

// mountWorker shows a worker its part of the machine, without anything that an earlier worker of
// its name left: it is a new machine each time.
func (n *node) mountWorker() error {
	if err := os.RemoveAll(filepath.Join(n.layout.Run(), "kubelet")); err != nil {
		return fmt.Errorf("remove what an earlier node left: %w", err)
	}
	groups, err := readCgroups()
	if err != nil {
		return err
	}
	// The worker's cgroup, which the starter put this process in, has its CPUs.
	cpus, err := machineCPUs()
	if err != nil {
		return err
	}
	v := &view{cpus: cpus, memoryBytes: int64(n.memoryBytes(memoryTotal())), groups: groups}
	if err := v.show(); err != nil {
		return err
	}
	go v.keep()
	return nil
}

// StopNode ends a worker and everything that runs on it, as when its machine loses power.
func (c Cluster) StopNode(ctx context.Context, name string) error {
	w, init, err := c.openWorker(name)
	if err != nil {
		return err
	}
	defer init.close()
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	_, err = c.end(ctx, init, c.Layout, w.name())
	return err
}

// StartNode starts a worker that has ended, and returns when it is Ready: a new machine with the
// same name and the same images. If the worker runs, it gets the images that it lacks.
func (c Cluster) StartNode(ctx context.Context, name string) error {
	w, init, err := c.openWorker(name)
	if err != nil {
		return err
	}
	defer init.close()
	before, err := c.stateOf(c.Layout, w.name())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var started time.Time
	if before.Exit != "" {
		started = time.Now()
		if err := os.Remove(statesPath(w.layout)); err != nil && !errors.Is(err, fs.ErrNotExist) { // the ended worker's
			return err
		}
		if err := PrepareImages(ctx, c.Layout, c.Log); err != nil {
			return err
		}
		if err := c.giveImages(ctx, w); err != nil {
			return err
		}
		if err := c.startAgain(ctx, init, againWorkers, c.Layout, before); err != nil {
			return err
		}
	}
	if err := c.waitContainerd(ctx, init.pid, w); err != nil {
		return err
	}
	if err := c.importLacking(ctx, w); err != nil {
		return err
	}
	api, err := newAPI(c.Layout)
	if err != nil {
		return err
	}
	return poll(ctx, 100*time.Millisecond, func() (bool, string, error) {
		if err := c.stillStarting(init.pid); err != nil {
			return false, "", err
		}
		// Reports from before the node ended do not count.
		ready, err := api.readySince(ctx, w.name(), started)
		return ready, fmt.Sprintf("node %s is not Ready (%v)", w.name(), err), nil
	})
}

// SetLink takes a worker's link away, or brings it back. While the link is away, packets to the
// worker are lost silently.
func (c Cluster) SetLink(name string, up bool) error {
	w, init, err := c.openWorker(name)
	if err != nil {
		return err
	}
	defer init.close()
	pid, err := c.firstProcess(init.pid, w)
	if err != nil {
		return err
	}
	return inNetworkOf(pid, func() error {
		link, err := netlink.LinkByName(boxLinkName)
		if err != nil {
			return fmt.Errorf("find the link %s of node %s: %w", boxLinkName, name, err)
		}
		if !up {
			return netlink.LinkSetDown(link)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		// The route went away with the link.
		if err := addRoute(link, "0.0.0.0/0", w.controlLinkIP(), w.ip()); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	})
}

// openWorker finds a worker, and opens the first process of the control node.
func (c Cluster) openWorker(name string) (member, process, error) {
	init, found, err := findInit(c.Layout)
	if err != nil {
		return member{}, process{}, err
	}
	if !found {
		return member{}, process{}, ErrNotRunning
	}
	w, err := c.worker(name)
	if err != nil {
		init.close()
	}
	return w, init, err
}

// inNetworkOf runs f in the network namespace of a process.
func inNetworkOf(pid int, f func() error) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error)
	go func() {
		// The thread stays locked and ends with this: nothing else ever runs in that namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace of process %d: %w", pid, err)
			return
		}
		done <- f()
	}()
	return <-done
}
