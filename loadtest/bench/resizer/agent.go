package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/loadtest/bench/machine"
	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/bench/stats"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/redisconn"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/actuate"
)

const (
	agentNode      = "bench-node"
	agentNamespace = "default" // under source node, as every namespace that says nothing
	agentRevision  = "f-00001"
	// dozers is the number of the node's pods that did not opt in and run now and then.
	dozers = 10

	// A request computes for work and waits for waits, both on average and exponentially
	// distributed.
	work  = 40 * time.Millisecond
	waits = 1500 * time.Millisecond

	// calmTime is how long the agent is left alone before it is measured.
	calmTime = 15 * time.Second
	sampled  = "libra_agent_containers"
)

// agentSite is the agent's node.
type agentSite struct {
	*site
	pods      client.Client
	cgroups   *cgroups
	functions []*worker // in the first pods that opted in
	agent     *process
	metrics   string // host:port
}

// worker is a process in a container.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// work starts a process in a container. The process ends with the site, and with this process.
func (s *site) work(in container, args ...string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{cmd: exec.Command(self, append([]string{"function"}, args...)...)}
	w.cmd.Env = []string{"GOMAXPROCS=2"}
	w.cmd.Stderr = os.Stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	s.onClose(func() error {
		w.cmd.Process.Kill() //nolint:errcheck // it may have ended
		w.cmd.Wait()         //nolint:errcheck // it was killed
		return nil
	})
	return w, in.add(w.cmd.Process.Pid)
}

// newAgentSite makes the node, its pods in the API server, and their cgroups with processes.
func (s *site) newAgentSite(ctx context.Context) (*agentSite, error) {
	a := &agentSite{site: s}
	var err error
	if a.pods, err = client.New(s.config, client.Options{}); err != nil {
		return nil, err
	}
	links := filepath.Join(s.dir, "cgroups")
	if err := os.Mkdir(links, 0o755); err != nil {
		return nil, err
	}
	a.cgroups, err = newCgroups(fmt.Sprintf("libra-bench-%d", os.Getpid()), links)
	s.onClose(a.cgroups.remove)
	if err != nil {
		return nil, err
	}
	// The pods' ceiling is the whole node.
	ceiling := api.Resources{CPUMilli: int64(runtime.NumCPU()) * 1000, MemoryBytes: allocation.MemoryBytes}
	if err := makeNode(ctx, s.kube, agentNode, nil, ceiling.CPUMilli); err != nil {
		return nil, err
	}
	revision, err := s.makeRevision(ctx, agentNamespace, agentRevision)
	if err != nil {
		return nil, err
	}
	for i := range s.agentPods {
		pod := functionPod(agentNamespace, fmt.Sprintf("f%03d", i), agentNode, revision.Name, revision.UID)
		if err := a.run(ctx, pod, i, ceiling); err != nil {
			return nil, fmt.Errorf("make pod %s: %w", pod.Name, err)
		}
	}
	for i := range dozers {
		made, err := a.cgroups.container(fmt.Sprintf("b%03d", i), fmt.Sprintf("bystander-%03d", i), api.Resources{})
		if err != nil {
			return nil, err
		}
		if _, err := s.work(made, "--dozes"); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// run makes a pod, its cgroup as the kubelet would make it once the controller has set the
// ceiling, and the process in it.
func (a *agentSite) run(ctx context.Context, pod *corev1.Pod, i int, ceiling api.Resources) error {
	if err := a.pods.Create(ctx, pod); err != nil {
		return err
	}
	id := fmt.Sprintf("%03d%s", i, strings.ReplaceAll(string(pod.UID), "-", ""))
	if err := a.report(ctx, pod, id); err != nil {
		return err
	}
	if err := actuate.SetLimits(ctx, a.pods, pod, api.UserContainer, ceiling); err != nil {
		return err
	}
	if err := a.report(ctx, pod, id); err != nil {
		return err
	}
	made, err := a.cgroups.container(string(pod.UID), id, ceiling)
	if err != nil {
		return err
	}
	w, err := a.work(made, "--redis", a.redis, "--node", agentNode, "--pod", agentNamespace+"/"+pod.Name,
		"--function", agentNamespace+"/"+agentRevision, "--seed", fmt.Sprint(a.seed+uint64(i)), "--work", work.String(), "--waits", waits.String(),
		"--owed-cpu", fmt.Sprint(allocation.CPUMilli), "--owed-memory", fmt.Sprint(allocation.MemoryBytes))
	if err == nil && len(a.functions) < a.inFlight {
		a.functions = append(a.functions, w)
	}
	return err
}

// report sets a pod's status as the kubelet does when the pod runs.
func (a *agentSite) report(ctx context.Context, pod *corev1.Pod, id string) error {
	started := metav1.Now()
	pod.Status.Phase, pod.Status.ObservedGeneration, pod.Status.StartTime = corev1.PodRunning, pod.Generation, &started
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: started}}
	pod.Status.ContainerStatuses = nil
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, ContainerID: "containerd://" + map[bool]string{true: id, false: "queue-" + id}[c.Name == api.UserContainer],
			Resources: c.Resources.DeepCopy(), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		})
	}
	return a.pods.Status().Update(ctx, pod)
}

// measureAgent measures the agent of a full node.
func (s *site) measureAgent(ctx context.Context, metrics map[string]float64) (figures []figure, err error) {
	s.say("making a node of real cgroups with %d pods that opted in and %d that did not", s.agentPods, dozers)
	a, err := s.newAgentSite(ctx)
	if err != nil {
		return nil, err
	}
	renewing, stop := context.WithCancel(ctx)
	pools := pool.NewRedis(redisconn.MustParse(s.redis))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for rig.Pause(renewing, beatEvery) == nil {
			pools.Renew(renewing, agentNode, owner) //nolint:errcheck // one that fails is made up for by the next
		}
	}()
	defer func() {
		stop()
		<-ended
		err = errors.Join(err, pools.Close())
	}()
	if err := a.startAgent(ctx); err != nil {
		return nil, err
	}

	s.say("measuring the agent at rest, for %v", s.agentLength)
	if err := rig.Pause(ctx, calmTime); err != nil {
		return nil, err
	}
	rest, err := s.watch(ctx, s.agentLength, a.agent)
	if err != nil {
		return nil, err
	}

	s.say("measuring the agent with %d requests in flight, for %v", s.inFlight, s.agentLength)
	for _, f := range a.functions {
		fmt.Fprintln(f.in, "serve")
	}
	if err := rig.Pause(ctx, calmTime); err != nil {
		return nil, err
	}
	begun := time.Now()
	counting, stopCounting := context.WithCancel(ctx)
	inFlight := make(chan float64, 1)
	go func() { inFlight <- countInFlight(counting, pools) }()
	busy, err := s.watch(ctx, s.agentLength, a.agent)
	stopCounting()
	counted := <-inFlight
	if err != nil {
		return nil, err
	}
	served := 0
	for _, f := range a.functions {
		n, err := f.end()
		if err != nil {
			return nil, err
		}
		served += n
	}
	if served == 0 || !(counted >= enough*float64(s.inFlight)) { // also if it could not be counted
		return nil, fmt.Errorf("%.1f requests were in flight on average, not %d: this machine has no CPU time for more; see --in-flight", counted, s.inFlight)
	}
	metrics["agent_pods"], metrics["agent_in_flight"], metrics["agent_rss_anonymous_mib"] = float64(s.agentPods), counted, busy[0].anonMiB
	metrics["agent_requests_per_s"] = float64(served) / (time.Since(begun) + calmTime).Seconds()
	s.say("  %.1f in flight on average, %.0f requests a second", counted, metrics["agent_requests_per_s"])

	over := s.agentLength.String()
	return []figure{
		{name: "agent_cores_busy", what: fmt.Sprintf("agent: cores, %d pods of which %d have a request in flight", s.agentPods, s.inFlight), estimate: stats.Mean(busy[0].cores), goal: stats.Goal{Bound: 0.02}, of: over},
		{name: "agent_cores_rest", what: fmt.Sprintf("agent: cores, %d pods at rest", s.agentPods), estimate: stats.Mean(rest[0].cores), goal: stats.Goal{Bound: 0.003}, of: over},
		{name: "agent_rss_mib", what: "agent: memory, MiB (its peak since the start)", estimate: stats.Exactly(busy[0].peakMiB), goal: stats.Goal{Bound: 64}, of: over},
	}, nil
}

// end ends a function, and returns how many requests it has served.
func (w *worker) end() (served int, err error) {
	if err := w.in.Close(); err != nil {
		return 0, err
	}
	if !w.out.Scan() {
		return 0, errors.New("a function ended early; its output is above")
	}
	_, err = fmt.Sscan(w.out.Text(), &served)
	return served, err
}

// countInFlight returns the mean number of requests in flight, as the pool sees them now and then.
func countInFlight(ctx context.Context, pools *pool.Redis) float64 {
	var counts []float64
	for rig.Pause(ctx, beatEvery) == nil {
		state, err := pools.Read(ctx, agentNode)
		if err == nil {
			counts = append(counts, float64(state.Begun))
		}
	}
	return mean(counts)
}

// startAgent starts the agent as its DaemonSet does, and waits until it knows all pods.
func (a *agentSite) startAgent(ctx context.Context) error {
	kubeconfig, err := a.account(ctx, settings.AgentNamespace, "libra-agent")
	if err != nil {
		return err
	}
	if a.metrics, err = machine.FreeAddress(); err != nil {
		return err
	}
	health, err := machine.FreeAddress()
	if err != nil {
		return err
	}
	a.agent, err = a.launch("libra-agent", a.site.agent, []string{"GOMAXPROCS=1"}, "--kubeconfig", kubeconfig, "--node", agentNode,
		"--redis-addr", a.redis, "--cgroup-root", a.cgroups.root, "--journal-dir", filepath.Join(a.dir, "journal"),
		"--metrics-addr", a.metrics, "--health-addr", health)
	if err != nil {
		return err
	}
	if err := a.agent.awaitReady(ctx, "http://"+health+"/readyz"); err != nil {
		return err
	}
	return rig.Eventually(ctx, readyTimeout, func(ctx context.Context) error {
		if err := a.agent.ended(); err != nil {
			return err
		}
		known, err := counter(ctx, a.metrics, sampled)
		if err == nil && int(known) != a.agentPods {
			err = fmt.Errorf("the agent samples %.0f of %d containers (its log is %s)", known, a.agentPods, a.agent.log)
		}
		return err
	})
}
