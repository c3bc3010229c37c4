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
)

const (
	// tiny is a memory limit of Redis, in bytes, that is full when it is empty.
	tiny    = "1"
	flushes = 3
	// undoTimeout bounds what sets things right, which nothing interrupts.
	undoTimeout = 10 * time.Second
	// busyTimeout is how long to wait for a request to be in mid-invocation.
	busyTimeout = 20 * time.Second
)

// target is what one fault hits, found before: while it lasts, the API server may not
// answer.
type target struct {
	fault
	function  string // of a pod
	at        place
	running   running
	processes []*os.Process // of a component
}

// aim finds what a fault hits.
func (c *cluster) aim(ctx context.Context, f fault, seed uint64) (t target, err error) {
	t = target{fault: f}
	if p, ok := c.processes[f.part]; ok {
		t.processes = []*os.Process{p}
		return t, nil
	}
	t.at = places[f.part]
	if f.part == pod {
		t.function = schedule.Functions[seed%uint64(len(schedule.Functions))]
		t.at = placeOf(t.function)
	}
	if f.action == kill || f.action == restart {
		t.running, err = c.fresh(ctx, t.at)
	} else {
		t.running, err = c.readyOf(ctx, t.at, "")
	}
	return t, err
}

// strike makes the fault and returns when it is over, with what it excuses. Whatever
// happens meanwhile, what it stopped goes on and what it changed is changed back.
func (c *cluster) strike(ctx context.Context, t target, l *load) (excuses []excuse, err error) {
	switch t.action {
	case pause:
		return nil, c.pause(ctx, t)
	case kill, restart:
		if t.action == restart {
			if err := awaitBusy(ctx, l, t.function); err != nil {
				return nil, err
			}
		}
		from := time.Now()
		if err := c.kill(t); err != nil {
			return nil, err
		}
		if _, err := c.readyOf(ctx, t.at, t.running.id); err != nil {
			return nil, err
		}
		if t.part == activator || t.part == pod {
			excuses = []excuse{{function: t.function, from: from, to: time.Now()}}
		}
		return excuses, nil
	case fill:
		return nil, c.fill(ctx, t)
	case flush:
		return nil, c.flush(ctx, t)
	case evict, remove:
		return c.removePod(ctx, t, l)
	}
	return nil, fmt.Errorf("fault %s: nobody knows how to make it", t.name())
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

// resume lets a process go on; one that has ended needs it no more.
func resume(p *os.Process) error {
	if err := p.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("let process %d go on: %w", p.Pid, err)
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
	processes, err := processesIn(t.running.id)
	if err != nil {
		return err
	}
	for _, p := range processes {
		// With the first goes the whole container.
		if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill process %d of %s: %w", p.Pid, t.part, err)
		}
	}
	return nil
}

// fill leaves Redis no room: it refuses every command that may need more.
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

// removePod evicts or deletes a function's pod in mid-invocation. Only what was sent
// until then is excused: what comes later is for the pod's successor.
func (c *cluster) removePod(ctx context.Context, t target, l *load) ([]excuse, error) {
	if err := awaitBusy(ctx, l, t.function); err != nil {
		return nil, err
	}
	from := time.Now()
	pods, name := c.Kube.CoreV1().Pods(rig.Namespace), t.running.pod.Name
	var err error
	if t.action == evict {
		err = pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: rig.Namespace}})
	} else {
		err = pods.Delete(ctx, name, metav1.DeleteOptions{})
	}
	if err != nil {
		return nil, err
	}
	excuses := []excuse{{function: t.function, from: from, to: time.Now()}}
	_, err = c.readyOf(ctx, t.at, t.running.id)
	return excuses, err
}

func awaitBusy(ctx context.Context, l *load, function string) error {
	return rig.Eventually(ctx, busyTimeout, func(context.Context) error {
		if !l.busy(function) {
			return fmt.Errorf("no request to %s is under way", function)
		}
		return nil
	})
}
