package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/pkg/api"
)

const (
	// forceLimit is how long limits may take to rise on an emulated machine, and then loans to be in force;
	// attemptLimit is how long the loans of one invocation may take.
	forceLimit   = 4 * time.Minute
	attemptLimit = 40 * time.Second
	// wholeWithin is how long everything may take to be whole again after a fault and the end of
	// loans. wholeLimit is how long to wait for that, to see how long it took.
	wholeWithin = 10 * time.Second
	wholeLimit  = time.Minute
	memoryLimit = 3 * time.Minute
	// lasts is how long load continues after a fault.
	lasts = 10 * time.Second
)

// nodeCase is something done to a node while loans are in force.
type nodeCase struct {
	name string
	// fault does it. mend, which may be nil, undoes it before everything must be whole.
	fault func(ctx context.Context, g *guest) (mend func(context.Context) error, err error)
	// alone replaces fault. No loans are in force before it.
	alone func(ctx context.Context, g *guest) (outcome, error)
	// stops are the functions whose container the case itself stops.
	stops []function
	// failures means that requests in flight may fail.
	failures bool
	// unmended means that everything must also be whole before mend.
	unmended bool
}

// nodeCases has the cases in the order in which they run; the reboot is the last.
var nodeCases = []nodeCase{
	{name: "nothing", fault: nothing},
	{name: "systemd reloads its units", fault: commands([]string{"systemctl", "daemon-reload"})},
	{name: "kubelet restarts", fault: commands([]string{"systemctl", "restart", "kubelet"})},
	{name: "containerd restarts", fault: commands([]string{"systemctl", "restart", "containerd"})},
	{name: "CPU manager moves a cpuset", fault: takeCPU},
	{name: "swap is on", fault: swapOn},
	{name: "agent paused", fault: pauseAgent},
	{name: "agent gone", fault: loseAgent, unmended: true},
	{name: "another client resizes CPU", fault: resizeAsAnother},
	{name: "memory beyond the limit", alone: memoryBeyond},
	{name: "a probe fails", fault: failProbe, stops: []function{borrower}, failures: true},
	{name: "reboot", fault: reboot, stops: functions, failures: true},
}

// outcome is the result of a case.
type outcome struct {
	Case       string  `json:"case"`
	Failed     string  `json:"failed,omitempty"` // why, or empty
	OOMKills   int64   `json:"oom_kills"`
	Restarts   int64   `json:"restarts"` // of containers that the case does not stop
	AwaySecs   float64 `json:"away_s"`   // until all were whole after the loans had ended
	Answered   int     `json:"answered"`
	Unanswered int     `json:"unanswered"`
}

func (g *guest) cases(ctx context.Context, only []string) error {
	for _, c := range nodeCases {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done := slices.ContainsFunc(g.state.Outcomes, func(o outcome) bool { return o.Case == c.name })
		if done || len(only) > 0 && !slices.Contains(only, c.name) {
			continue
		}
		g.say("case: %s", c.name)
		o, err := g.try(ctx, c)
		if o.Case = c.name; err != nil {
			o.Failed = err.Error()
			g.say("failed: %v", err)
			g.tell()
		} else {
			g.say("whole %.1f s after the end of the loans; %d requests answered, %d not", o.AwaySecs, o.Answered, o.Unanswered)
		}
		g.state.Outcomes, g.state.Rebooting = append(g.state.Outcomes, o), false
		if err := errors.Join(g.save(), g.report(o)); err != nil {
			return err
		}
	}
	return nil
}

// report prints an outcome for the program that started the machine, which may be stopped before
// all cases have run.
func (g *guest) report(o outcome) error {
	data, err := json.Marshal(o)
	if err == nil {
		fmt.Printf("%s%s\n", outcomeLine, data)
	}
	return err
}

func (g *guest) save() error {
	data, err := json.Marshal(g.state)
	if err != nil {
		return err
	}
	return os.WriteFile(statePath, data, 0o600)
}

// try runs one case.
func (g *guest) try(ctx context.Context, c nodeCase) (o outcome, err error) {
	if g.state.Rebooting { // the second half of the reboot case
		// The kernel's count starts from 0 again.
		if o.OOMKills, err = oomKills(); err != nil {
			return o, err
		}
		return o, errors.Join(g.judge(ctx, &o, 0), unharmed(o))
	}
	if err := g.eventually(ctx, "the functions", wholeLimit, g.functionsRun); err != nil {
		return o, err
	}
	if err := g.noteWeights(); err != nil {
		return o, err
	}
	if c.alone != nil {
		return c.alone(ctx, g)
	}
	before := maps.Clone(g.running)
	kills, err := oomKills()
	if err != nil {
		return o, err
	}
	l, err := g.startLoad(ctx)
	if err != nil {
		return o, err
	}
	var mend func(context.Context) error
	inForce := g.lend(ctx, l)
	if inForce == nil {
		g.say("loans are in force: %s", g.limits())
		mend, err = c.fault(ctx, g)
		backOff(ctx, lasts)
	}
	err = errors.Join(inForce, err, l.stop(ctx))
	if c.unmended {
		err = errors.Join(err, g.judge(ctx, &o, wholeWithin))
	}
	if mend != nil {
		err = errors.Join(err, mend(ctx))
	}
	o.Answered, o.Unanswered = l.answered, len(l.failed)
	if len(l.failed) > 0 && !c.failures {
		err = errors.Join(err, fmt.Errorf("failed requests: %d, the first: %w", len(l.failed), l.failed[0]))
	}
	err = errors.Join(err, g.judge(ctx, &o, wholeWithin))
	// More memory than that harms nobody, and unused memory goes back in time. For minutes after a
	// container has restarted, the kubelet does not know how much it uses, and so lowers no limit.
	if len(c.stops) == 0 {
		err = errors.Join(err, g.eventually(ctx, "all pods' own memory limits", memoryLimit, g.memoryBack))
	}
	after, killsErr := oomKills()
	o.OOMKills = after - kills
	g.countRestarts(c, before, &o)
	return o, errors.Join(err, killsErr, unharmed(o))
}

// countRestarts counts the restarts of containers that the case does not stop.
func (g *guest) countRestarts(c nodeCase, before map[string]running, o *outcome) {
	for _, f := range functions {
		if !slices.Contains(c.stops, f) {
			o.Restarts += int64(g.running[f.key()].restarts - before[f.key()].restarts)
		}
	}
}

// judge waits until all are whole, and returns an error if that takes longer than within. 0 sets no
// bound but wholeLimit, for a machine that has just booted.
func (g *guest) judge(ctx context.Context, o *outcome, within time.Duration) error {
	began := time.Now()
	if err := g.eventually(ctx, "all pods to be whole", wholeLimit, g.whole); err != nil {
		return err
	}
	away := time.Since(began)
	o.AwaySecs = max(o.AwaySecs, away.Seconds())
	if within > 0 && away > within {
		return fmt.Errorf("all pods were whole only %.1f s after the end of the loans, not within %v", away.Seconds(), within)
	}
	return nil
}

// unharmed returns an error if a process was OOM-killed or a container restarted.
func unharmed(o outcome) error {
	var errs []error
	if o.OOMKills > 0 {
		errs = append(errs, fmt.Errorf("processes that the kernel killed because memory ran out: %d", o.OOMKills))
	}
	if o.Restarts > 0 {
		errs = append(errs, fmt.Errorf("containers that restarted: %d", o.Restarts))
	}
	return errors.Join(errs...)
}

// raised returns an error unless the borrower's memory limit and the ceilings are in force.
func (g *guest) raised() error {
	borrows, err := g.limitsOf(borrower)
	if err != nil {
		return err
	}
	ceiling, err := g.limitsOf(first)
	switch {
	case err != nil:
		return err
	case borrows.MemoryBytes < borrower.owed.MemoryBytes+borrowedMemory:
		return fmt.Errorf("the borrower has a memory limit of %d MiB", borrows.MemoryBytes/mebibyte)
	case ceiling.CPUMilli <= first.owed.CPUMilli:
		return fmt.Errorf("%s has no ceiling above its own %dm", first.name, ceiling.CPUMilli)
	}
	return nil
}

// inForce returns an error unless every loan is in force and used, and a weight differs from the
// kubelet's.
func (g *guest) inForce() error {
	if err := g.raised(); err != nil {
		return err
	}
	lends, err := g.limitsOf(donor)
	if err != nil {
		return err
	}
	borrows, err := g.limitsOf(borrower)
	if err != nil {
		return err
	}
	used, err := g.running[borrower.key()].scope.memory()
	switch {
	case err != nil:
		return err
	case lends.CPUMilli != donor.owed.CPUMilli-lentMilli:
		return fmt.Errorf("the donor has a CPU limit of %dm", lends.CPUMilli)
	case borrows.CPUMilli != borrower.owed.CPUMilli+lentMilli:
		return fmt.Errorf("the borrower has a CPU limit of %dm", borrows.CPUMilli)
	case used <= borrower.owed.MemoryBytes:
		return fmt.Errorf("the borrower uses %d MiB, no more than its own %d", used/mebibyte, borrower.owed.MemoryBytes/mebibyte)
	}
	for _, f := range []function{first, second} {
		r := g.running[f.key()]
		weight, err := r.scope.weight()
		if err != nil {
			return err
		}
		if weight != r.weight {
			return nil
		}
	}
	return errors.New("no weight differs from the kubelet's")
}

func (g *guest) limitsOf(f function) (api.Resources, error) { return g.running[f.key()].scope.limits() }

// memoryBack returns an error while a container has more memory than it is owed.
func (g *guest) memoryBack(context.Context) error {
	for _, f := range functions {
		limits, err := g.limitsOf(f)
		if err != nil {
			return err
		}
		if limits.MemoryBytes != f.owed.MemoryBytes {
			return fmt.Errorf("%s has a memory limit of %d MiB, not %d", f.name, limits.MemoryBytes/mebibyte, f.owed.MemoryBytes/mebibyte)
		}
	}
	return nil
}

// whole returns an error unless all functions are whole.
func (g *guest) whole(ctx context.Context) error {
	if err := g.functionsRun(ctx); err != nil {
		return err
	}
	var errs []error
	for _, f := range functions {
		r := g.running[f.key()]
		limits, err := r.scope.limits()
		if err != nil {
			return err
		}
		weight, err := r.scope.weight()
		if err != nil {
			return err
		}
		errs = append(errs, f.whole(limits, g.allocatable))
		if r.weight != 0 && weight != r.weight {
			errs = append(errs, fmt.Errorf("%s has the weight %d, not %d", f.name, weight, r.weight))
		}
	}
	return errors.Join(errs...)
}

// whole returns an error unless the function has what it is owed: of CPU exactly that or, under source
// node, its ceiling, on a node with so much allocatable; of memory at least that.
func (f function) whole(limits api.Resources, allocatableMilli int64) error {
	cpu := f.owed.CPUMilli
	if f.namespace == first.namespace {
		cpu = max(cpu, allocatableMilli)
	}
	var errs []error
	if limits.CPUMilli != cpu {
		errs = append(errs, fmt.Errorf("%s has a CPU limit of %dm, not %dm", f.name, limits.CPUMilli, cpu))
	}
	if limits.MemoryBytes < f.owed.MemoryBytes {
		errs = append(errs, fmt.Errorf("%s has a memory limit of %d MiB, not %d", f.name, limits.MemoryBytes/mebibyte, f.owed.MemoryBytes/mebibyte))
	}
	return errors.Join(errs...)
}

// limits describes the limits and weights in force.
func (g *guest) limits() (text string) {
	for _, f := range functions {
		limits, _ := g.limitsOf(f)
		weight, _ := g.running[f.key()].scope.weight()
		text += fmt.Sprintf("%s %v weight %d; ", f.name, limits, weight)
	}
	return text
}

type fault = func(ctx context.Context, g *guest) (mend func(context.Context) error, err error)

func nothing(context.Context, *guest) (func(context.Context) error, error) { return nil, nil }

func commands(all ...[]string) fault {
	return func(ctx context.Context, _ *guest) (func(context.Context) error, error) {
		for _, words := range all {
			if err := command(ctx, words[0], words[1:]...); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

// takeCPU has the static CPU manager give a CPU to one container alone. The manager then writes the
// cpuset of all others, and the runtime writes everything else that it knows of them.
func takeCPU(ctx context.Context, g *guest) (func(context.Context) error, error) {
	const namespace, name = "default", "guaranteed"
	own := api.Resources{CPUMilli: 1000, MemoryBytes: 32 * mebibyte}.List()
	grace := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers:                    []corev1.Container{{Name: "c", Image: pauseImage, Resources: corev1.ResourceRequirements{Limits: own, Requests: own}}},
		},
	}
	if _, err := g.kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	mend := func(ctx context.Context) error {
		return g.kube.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	}
	before, err := g.running[borrower.key()].scope.cpus()
	if err != nil {
		return mend, err
	}
	return mend, g.eventually(ctx, "another cpuset of the borrower", time.Minute, func(ctx context.Context) error {
		now, err := g.running[borrower.key()].scope.cpus()
		if err == nil && now == before {
			err = fmt.Errorf("the cpuset is still %q", now)
		}
		return err
	})
}

// resizeAsAnother resizes the borrower's CPU, as a vertical autoscaler would.
func resizeAsAnother(ctx context.Context, g *guest) (func(context.Context) error, error) {
	set := func(ctx context.Context, milli int64) error {
		patch := fmt.Appendf(nil, `{"spec": {"containers": [{"name": %q, "resources": {"limits": {"cpu": "%dm"}}}]}}`, api.UserContainer, milli)
		_, err := g.kube.CoreV1().Pods(borrower.namespace).Patch(ctx, borrower.name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{FieldManager: "another"}, "resize")
		return err
	}
	return func(ctx context.Context) error { return set(ctx, borrower.owed.CPUMilli) }, set(ctx, borrower.owed.CPUMilli+100)
}

func pauseAgent(ctx context.Context, g *guest) (func(context.Context) error, error) {
	agent, err := g.agentScope(ctx)
	if err != nil {
		return nil, err
	}
	if err := agent.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func(context.Context) error { return agent.signal(syscall.SIGCONT) }, nil
}

// loseAgent stops the agent's processes, which the kubelet then kills, and lets no agent come back
// before everything is whole.
func loseAgent(ctx context.Context, g *guest) (func(context.Context) error, error) {
	agent, err := g.agentScope(ctx)
	if err != nil {
		return nil, err
	}
	if err := agent.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	elsewhere := func(ctx context.Context, value string) error {
		patch := fmt.Appendf(nil, `{"spec": {"template": {"spec": {"nodeSelector": {"libra.dev/nowhere": %s}}}}}`, value)
		_, err := g.kube.AppsV1().DaemonSets(agentNamespace).Patch(ctx, "libra-agent", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if err := elsewhere(ctx, `"true"`); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return errors.Join(elsewhere(ctx, "null"), g.eventually(ctx, "a new agent", upLimit, func(ctx context.Context) error {
			_, err := g.agentScope(ctx)
			return err
		}))
	}, nil
}

func swapOn(ctx context.Context, g *guest) (func(context.Context) error, error) {
	const file = "/swapfile"
	fault := commands(
		[]string{"dd", "if=/dev/zero", "of=" + file, "bs=1M", "count=256", "status=none"},
		[]string{"chmod", "600", file}, []string{"mkswap", file}, []string{"swapon", file})
	_, err := fault(ctx, g)
	return func(ctx context.Context) error { return command(ctx, "swapoff", file) }, err
}

// failProbe keeps the borrower from answering, until the kubelet restarts its container.
func failProbe(ctx context.Context, g *guest) (func(context.Context) error, error) {
	before := g.running[borrower.key()]
	if err := before.scope.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return nil, g.eventually(ctx, "a restart of the borrower's container", 2*time.Minute, func(ctx context.Context) error {
		if err := g.functionsRun(ctx); err != nil {
			return err
		}
		if g.running[borrower.key()].restarts == before.restarts {
			return errors.New("the container has not restarted")
		}
		return nil
	})
}

// reboot does not return: the test continues once the machine is up again.
func reboot(ctx context.Context, g *guest) (func(context.Context) error, error) {
	g.state.Rebooting = true
	if err := g.save(); err != nil {
		return nil, err
	}
	if err := command(ctx, "systemctl", "reboot"); err != nil {
		return nil, err
	}
	<-ctx.Done()
	os.Exit(0)
	return nil, nil
}
