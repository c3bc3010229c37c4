package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/pkg/api"
)

const (
	// tiny is a memory limit, in bytes, that even an empty Redis exceeds.
	tiny    = "1"
	flushes = 3
	// flips is how often the source changes to the other one and back.
	flips = 2
	// undoTimeout bounds the undoing of a fault, which nothing interrupts.
	undoTimeout = 10 * time.Second
	// busyTimeout is how long to wait until a request is in flight.
	busyTimeout = 20 * time.Second
)

// target is what one fault hits. It is found beforehand, because the API server may not
// answer during the fault.
type target struct {
	fault
	source    api.Source // of the trial
	function  string     // of the pod, if one is hit
	at        place
	running   running
	processes []*os.Process // of a component, or of the agent
	meanwhile *target       // what else is hit while the part is gone
	back      func()        // called when the part may run again, if that is before the end
}

// struck is what a fault that is over leaves for the verdict.
type struck struct {
	excuses []excuse
	// due is the time from which something ran that could put right what the fault left;
	// zero means from its end.
	due time.Time
}

// aim finds what a fault of a trial hits.
func (c *cluster) aim(ctx context.Context, f fault, of trial) (t target, err error) {
	t = target{fault: f, source: of.source}
	if p, ok := c.processes[f.part]; ok {
		t.processes = []*os.Process{p}
		return t, nil
	}
	if f.part == sourcePart || f.part == workerNode {
		return t, nil
	}
	t.at = places[f.part]
	if f.part == pod {
		t.function = schedule.Functions[of.seed%uint64(len(schedule.Functions))]
		t.at = placeOf(t.function)
	}
	if f.action == kill || f.action == killHolding || f.action == restart {
		t.running, err = c.fresh(ctx, t.at)
	} else {
		t.running, err = c.readyOf(ctx, t.at, "")
	}
	if err != nil {
		return t, err
	}
	switch {
	case f.part == agent:
		// Found in advance: it must be hit while it holds something, which may last only
		// milliseconds.
		t.processes, err = processesIn(t.running.id)
	case f.part == controller && f.action == gone:
		var also target
		also, err = c.aim(ctx, fault{kind: kind{part: pod, action: remove}}, of)
		t.meanwhile = &also
	}
	return t, err
}

// strike makes the fault and returns when it is over. Whatever happens, it resumes what it
// stopped and changes back what it changed.
func (c *cluster) strike(ctx context.Context, t target, l *load) (struck, error) {
	if t.part == workerNode {
		return struck{}, c.workerAway(ctx, t)
	}
	switch t.action {
	case pause, pauseHolding:
		return struck{}, c.pause(ctx, t)
	case restart:
		if t.part == kubelet {
			return struck{}, c.restartKubelet(ctx)
		}
		if err := awaitBusy(ctx, l, t.function); err != nil {
			return struck{}, err
		}
		return c.killed(ctx, t)
	case kill, killHolding:
		return c.killed(ctx, t)
	case gone:
		return c.beGone(ctx, t, l)
	case fill:
		return struck{}, c.fill(ctx, t)
	case flush:
		return struck{}, c.flush(ctx, t)
	case flip:
		return struck{}, c.flip(ctx, t)
	case evict, remove:
		return c.removePod(ctx, t, l)
	}
	return struck{}, fmt.Errorf("fault %s: chaos does not know how to make it", t.name())
}

// killed kills something that Kubernetes restarts, and waits for the restart.
func (c *cluster) killed(ctx context.Context, t target) (s struck, err error) {
	from := time.Now()
	if err := c.kill(t); err != nil {
		return s, err
	}
	if _, err := c.readyOf(ctx, t.at, t.running.id); err != nil {
		return s, err
	}
	if t.part == activator || t.part == pod {
		s.excuses = []excuse{{function: t.function, from: from, to: time.Now()}}
	}
	return s, nil
}

// restartKubelet has the box kill the kubelet and start it again.
func (c *cluster) restartKubelet(ctx context.Context) error {
	args := []string{"restart", components[kubelet]}
	if c.Home == rig.Worker {
		args = append(args, "--node", c.Home)
	}
	if err := c.boxDoes(ctx, args...); err != nil {
		return err
	}
	status, err := boxStatus(ctx, c.box)
	if err != nil {
		return fmt.Errorf("%s status: %w", c.box, err)
	}
	c.processes, err = processesOf(status)
	return err
}

// flip switches the source to the other one and back, several times.
func (c *cluster) flip(ctx context.Context, t target) (err error) {
	defer func() {
		err = errors.Join(err, c.setSource(context.WithoutCancel(ctx), t.source))
	}()
	const times = 2*flips - 1 // the deferred call makes the last change, back
	for i := range times {
		to := other(t.source)
		if i%2 == 1 {
			to = t.source
		}
		if err := c.setSource(ctx, to); err != nil {
			return err
		}
		if err := rig.Pause(ctx, t.length/times); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) pause(ctx context.Context, t target) (err error) {
	processes := t.processes
	if processes == nil {
		if processes, err = processesIn(t.running.id); err != nil {
			return err
		}
	}
	defer func() {
		for _, p := range processes {
			err = errors.Join(err, resume(p))
		}
	}()
	for _, p := range processes {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return fmt.Errorf("stop process %d of %s: %w", p.Pid, t.part, err)
		}
	}
	return rig.Pause(ctx, t.length)
}

// resume continues a stopped process. It ignores a process that has ended.
func resume(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("resume process %d: %w", p.Pid, err)
	}
	return nil
}

func processesIn(id string) ([]*os.Process, error) {
	found, err := containers.Find(id)
	if err != nil {
		return nil, err
	}
	return found.Processes()
}

func (c *cluster) kill(t target) error {
	processes := t.processes
	if processes == nil {
		var err error
		if processes, err = processesIn(t.running.id); err != nil {
			return err
		}
	}
	for _, p := range processes {
		// Killing the first ends the whole container.
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill process %d of %s: %w", p.Pid, t.part, err)
		}
	}
	return nil
}

// fill leaves Redis no memory, so that it refuses every command that may need more.
func (c *cluster) fill(ctx context.Context, t target) (err error) {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		err = errors.Join(err, c.redis.ConfigSet(ctx, "maxmemory", c.maxMemory).Err())
	}()
	if err := c.redis.ConfigSet(ctx, "maxmemory", tiny).Err(); err != nil {
		return err
	}
	return rig.Pause(ctx, t.length)
}

func (c *cluster) flush(ctx context.Context, t target) error {
	for i := range flushes {
		if i > 0 {
			if err := rig.Pause(ctx, t.length/(flushes-1)); err != nil {
				return err
			}
		}
		if err := c.redis.FlushAll(ctx).Err(); err != nil {
			return err
		}
	}
	return nil
}

// removePod evicts or deletes a function's pod in mid-invocation. It excuses only requests
// that were sent by then: later ones are for the pod's successor.
func (c *cluster) removePod(ctx context.Context, t target, l *load) (s struck, err error) {
	if err := awaitBusy(ctx, l, t.function); err != nil {
		return s, err
	}
	from := time.Now()
	pods, name := c.Kube.CoreV1().Pods(rig.Namespace), t.running.pod.Name
	if t.action == evict {
		err = pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: rig.Namespace}})
	} else {
		err = pods.Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil {
		return s, err
	}
	s.excuses = []excuse{{function: t.function, from: from, to: time.Now()}}
	_, err = c.readyOf(ctx, t.at, t.running.id)
	return s, err
}

func awaitBusy(ctx context.Context, l *load, function string) error {
	return rig.Eventually(ctx, busyTimeout, func(context.Context) error {
		if !l.busy(function) {
			return fmt.Errorf("no request to %s is in flight", function)
		}
		return nil
	})
}
