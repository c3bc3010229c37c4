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
	// tiny is a memory limit of Redis, in bytes, that is full when it is empty.
	tiny    = "1"
	flushes = 3
	// flips are to the other source and back.
	flips = 2
	// undoTimeout bounds what sets things right, which nothing interrupts.
	undoTimeout = 10 * time.Second
	// busyTimeout is how long to wait for a request to be in mid-invocation.
	busyTimeout = 20 * time.Second
)

// target is what one fault hits, found before: while it lasts, the API server may not
// answer.
type target struct {
	fault
	source    api.Source // of the trial
	function  string     // of a pod
	at        place
	running   running
	processes []*os.Process // of a component, or of the agent
	meanwhile *target       // what else is hit while the part is gone
	back      func()        // is told when the part may run again, if that is before the end
}

// struck is what a fault that is over leaves to judge by.
type struck struct {
	excuses []excuse
	// due is since when somebody ran who could put right what the fault left; zero when that
	// is only since its end.
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
		// It is to be hit while it holds something, which may be for some milliseconds.
		t.processes, err = processesIn(t.running.id)
	case f.part == controller && f.action == gone:
		var also target
		also, err = c.aim(ctx, fault{kind: kind{part: pod, action: remove}}, of)
		t.meanwhile = &also
	}
	return t, err
}

// strike makes the fault and returns when it is over. Whatever happens meanwhile, what it
// stopped goes on and what it changed is changed back.
func (c *cluster) strike(ctx context.Context, t target, l *load) (struck, error) {
	if t.part == workerNode {
		return struck{}, c.workerAway(ctx, t)
	}
	switch t.action {
	case pause, pauseHolding:
		return struck{}, c.pause(ctx, t)
	case restart:
		if t.part == kubelet {
			return struck{}, c.restartComponent(ctx, t.part)
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
	return struck{}, fmt.Errorf("fault %s: nobody knows how to make it", t.name())
}

// killed kills what Kubernetes starts again, and waits for that.
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

// restartComponent has the box kill one of its processes and start it again.
func (c *cluster) restartComponent(ctx context.Context, p part) error {
	args := []string{"restart", components[p]}
	if p == kubelet && c.Home == rig.Worker {
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

// flip has what is lent come from elsewhere and again from where it came before, some times
// over.
func (c *cluster) flip(ctx context.Context, t target) (err error) {
	defer func() {
		err = errors.Join(err, c.setSource(context.WithoutCancel(ctx), t.source))
	}()
	const times = 2*flips - 1 // and at the end back for good
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
	processes := t.processes
	if processes == nil {
		var err error
		if processes, err = processesIn(t.running.id); err != nil {
			return err
		}
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
			return fmt.Errorf("no request to %s is under way", function)
		}
		return nil
	})
}
