package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/serving/pkg/apis/serving"

	"libra.dev/libra/loadtest/bench/rig"
	"libra.dev/libra/loadtest/containers"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
	"libra.dev/libra/resizer/ceiling"
)

const (
	sampleEvery  = 10 * time.Millisecond
	poolEvery    = 20 * time.Millisecond
	podsEvery    = 500 * time.Millisecond
	metricsEvery = time.Second
)

// watched is a container of a function, or of a service that did not opt in.
type watched struct {
	pod       string // namespace/name
	owed      api.Resources
	ceiling   int64 // milli CPU; 0 under owners
	stranger  bool
	container containers.Container
}

// watcher follows limits and weights during one trial. It reads the pool itself, and like
// every read that ends the invocations whose leases have expired.
type watcher struct {
	*cluster
	source      api.Source
	allocatable int64 // milli CPU, of the functions' node
	cancel      context.CancelFunc
	done        sync.WaitGroup

	mu        sync.Mutex
	tracker   *tracker
	view      view
	now       moment                       // the last one
	situation situation                    // what chaos does
	managed   map[string]watched           // by container ID
	weighed   map[containers.Pod]podWeight // outlive the pods' containers
	first     map[string]*corev1.Pod       // by UID: the pods as they were first seen
	owed      map[string]api.Resources     // by revision
	wrong     map[string]bool              // forbidden changes that were seen

	// Counts from when the watch began, and since then, by container ID.
	oomsBefore, ooms map[string]int64
	toldBefore, told map[string]float64 // violations that agents counted
	began            bool
}

// situation tells the watcher what chaos is doing.
type situation struct {
	load     *load // nil while none runs
	busyAt   time.Time
	agents   int  // faults that take the agent away
	flipping int  // faults that change the source
	flipped  bool // it was changed, and limits have not all followed yet
}

// watch follows pods under a source until stop. source is empty where Libra's activator is
// not installed.
func (c *cluster) watch(ctx context.Context, source api.Source) (*watcher, error) {
	node, err := c.Kube.CoreV1().Nodes().Get(ctx, c.Home, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{
		cluster: c, source: source, allocatable: node.Status.Allocatable.Cpu().MilliValue(), cancel: cancel, tracker: newTracker(),
		managed: map[string]watched{}, weighed: map[containers.Pod]podWeight{},
		first: map[string]*corev1.Pod{}, owed: map[string]api.Resources{},
		wrong: map[string]bool{}, oomsBefore: map[string]int64{}, ooms: map[string]int64{},
		toldBefore: map[string]float64{}, told: map[string]float64{},
	}
	if err := w.lookAtPods(ctx); err != nil {
		cancel()
		return nil, err
	}
	// An agent that has just been started may not listen yet.
	if err := rig.Eventually(ctx, readyTimeout, w.lookAtMetrics); err != nil {
		cancel()
		return nil, err
	}
	w.began = true
	w.every(ctx, sampleEvery, func(context.Context) { w.sample() })
	w.every(ctx, podsEvery, func(ctx context.Context) { _ = w.lookAtPods(ctx) })       // the API server may be paused
	w.every(ctx, metricsEvery, func(ctx context.Context) { _ = w.lookAtMetrics(ctx) }) // so may the agent
	if source != "" {
		w.every(ctx, poolEvery, w.lookAtPool)
	}
	return w, nil
}

func (w *watcher) every(ctx context.Context, d time.Duration, look func(context.Context)) {
	w.done.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				looking, cancel := context.WithTimeout(ctx, apiTimeout)
				look(looking)
				cancel()
			}
		}
	})
}

// stop ends the watch, and waits until nothing is watched any more.
func (w *watcher) stop() {
	w.cancel()
	w.done.Wait()
}

func (w *watcher) sample() {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := moment{source: w.source, view: w.view, agent: w.situation.agents == 0, changing: w.situation.flipped}
	for id, c := range w.managed {
		limits, err := c.container.Limits()
		if err != nil {
			delete(w.managed, id) // it has ended
			continue
		}
		m.samples = append(m.samples, sample{pod: c.pod, owed: c.owed, limits: limits, ceiling: c.ceiling, stranger: c.stranger})
		if kills, err := c.container.OOMKills(); err == nil {
			if _, known := w.oomsBefore[id]; !known {
				w.oomsBefore[id] = kills
			}
			w.ooms[id] = max(w.ooms[id], kills)
		}
	}
	m.weights, _ = atOnce(w.readWeights)
	m.at = time.Now()
	if l := w.situation.load; l != nil && l.optedIn() {
		w.situation.busyAt = m.at
	}
	m.busyAt = w.situation.busyAt
	if m.changing && w.situation.flipping == 0 {
		after := m
		after.changing = false
		if after.excess() == 0 && len(after.wrong()) == 0 {
			m, w.situation.flipped = after, false
		}
	}
	w.now = m
	w.tracker.observe(m)
}

// readWeights returns the weights of the pods that exist, sorted by name.
func (w *watcher) readWeights() []podWeight {
	running := map[string]bool{}
	for _, c := range w.managed {
		running[c.pod] = true
	}
	var weights []podWeight
	for p, known := range w.weighed {
		var err error
		if known.weight, err = p.Weight(); err != nil {
			delete(w.weighed, p) // it has ended
			continue
		}
		if known.remains(running[known.pod]) {
			continue
		}
		weights = append(weights, known)
	}
	slices.SortFunc(weights, func(a, b podWeight) int { return cmp.Compare(a.pod, b.pod) })
	return weights
}

func (w *watcher) lookAtPool(ctx context.Context) {
	asked := time.Now()
	state, err := w.pool.Read(ctx, w.Home)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.view = view{at: asked, balances: state.Pods}
}

// lookAtPods finds the containers that run, and checks what the API says about their pods.
func (w *watcher) lookAtPods(ctx context.Context) error {
	pods, err := w.Kube.CoreV1().Pods(rig.Namespace).List(ctx, metav1.ListOptions{LabelSelector: serving.RevisionLabelKey})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if err := w.lookAtPod(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) lookAtPod(ctx context.Context, p *corev1.Pod) error {
	uid := string(p.UID)
	w.mu.Lock()
	if w.first[uid] == nil {
		w.first[uid] = p
	}
	for _, what := range forbidden(w.first[uid], p) {
		w.wrong[what] = true
	}
	w.noteOOMs(p)
	w.mu.Unlock()
	owed, err := w.owedTo(ctx, p)
	if err != nil {
		return err
	}
	most := int64(0)
	if w.source == api.SourceNode && api.OptedIn(p.Labels) {
		if most, err = ceiling.Of(p, owed.CPUMilli, w.allocatable, settings.Settings{}); err != nil {
			return err
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		id := containerID(s)
		if s.Name == api.QueueProxyContainer || s.State.Running == nil {
			continue
		}
		w.mu.Lock()
		_, known := w.managed[id]
		w.mu.Unlock()
		if known {
			continue
		}
		found, err := containers.Find(id)
		if err != nil {
			continue // it has just ended
		}
		name, group, stranger := p.Namespace+"/"+p.Name, found.Pod(), !api.OptedIn(p.Labels)
		w.mu.Lock()
		w.managed[id] = watched{pod: name, owed: owed, ceiling: most, stranger: stranger, container: found}
		w.weighed[group] = podWeight{pod: name, parent: group.Parent(), kubelet: group.KubeletWeight(requested(p)), stranger: stranger}
		w.mu.Unlock()
	}
	return nil
}

// requested returns the CPU that a pod requests, in milli CPU, from which the kubelet
// derives its weight. Libra never changes it.
func requested(p *corev1.Pod) (milli int64) {
	for _, c := range p.Spec.Containers {
		milli += c.Resources.Requests.Cpu().MilliValue()
	}
	return milli
}

// noteOOMs counts containers that were OOM-killed according to the API and whose kill was
// not seen in their cgroup.
func (w *watcher) noteOOMs(p *corev1.Pod) {
	for _, s := range p.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
			t := state.Terminated
			if t == nil || t.Reason != "OOMKilled" {
				continue
			}
			_, id, _ := strings.Cut(t.ContainerID, "://")
			if _, known := w.oomsBefore[id]; !known && !w.began {
				w.oomsBefore[id] = 1
			}
			w.ooms[id] = max(w.ooms[id], 1)
		}
	}
}

// owedTo returns the user allocation of a pod: the limits of its Revision.
func (w *watcher) owedTo(ctx context.Context, p *corev1.Pod) (api.Resources, error) {
	name := p.Labels[serving.RevisionLabelKey]
	w.mu.Lock()
	owed, known := w.owed[name]
	w.mu.Unlock()
	if known {
		return owed, nil
	}
	revision, err := w.Knative.ServingV1().Revisions(p.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return owed, err
	}
	owed = api.FromList(revision.Spec.Containers[0].Resources.Limits)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owed[name] = owed
	return owed, nil
}

// follow sets the load. While it has requests in flight, limits and weights may differ from
// those at rest.
func (w *watcher) follow(l *load) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.situation.load, w.situation.busyAt = l, time.Now()
}

// begin and over mark the begin and the end of a fault that takes the agent away or changes
// the source.
func (w *watcher) begin(f fault) { w.count(f, 1) }
func (w *watcher) over(f fault)  { w.count(f, -1) }

func (w *watcher) count(f fault, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch f.part {
	case agent:
		w.situation.agents += by
	case sourcePart:
		w.situation.flipping += by
		w.situation.flipped = true
	}
}

// settled reports whether everything is at rest.
func (w *watcher) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.now.samples) > 0 && len(w.now.weights) > 0 && w.now.whole()
}

// has reports whether Libra has something in hand that a fault could make it drop: under
// owners a loan; under node weights that are not the kubelet's and, in a crowd, also a
// function that is held.
func (w *watcher) has(t trial) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.source == api.SourceOwners {
		return w.view.onLoan()
	}
	held := func(s sample) bool { return s.limits.CPUMilli < s.ceiling }
	return slices.ContainsFunc(w.now.weights, podWeight.moved) && (!t.crowded() || slices.ContainsFunc(w.now.samples, held))
}

// awaitHas waits until has holds, and reports whether it did in time.
func (w *watcher) awaitHas(ctx context.Context, t trial) bool {
	for deadline := time.Now().Add(hasTimeout); !w.has(t); {
		// It may last only milliseconds.
		if time.Now().After(deadline) || rig.Pause(ctx, sampleEvery/2) != nil {
			return false
		}
	}
	return true
}

// awaitSettled waits until everything has been at rest for a second, and returns since when
// it was.
func (w *watcher) awaitSettled(ctx context.Context, deadline time.Time) (since time.Time, err error) {
	for {
		now := time.Now()
		switch {
		case !w.settled():
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= time.Second:
			return since, nil
		}
		if now.After(deadline) {
			return now, fmt.Errorf("not all pods are at rest: %s", w.describe())
		}
		if err := rig.Pause(ctx, sampleEvery); err != nil {
			return now, err
		}
	}
}

func (w *watcher) describe() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return describe(w.now.samples) + "; weights: " + describeWeights(w.now.weights)
}

func describe(samples []sample) string {
	var all []string
	for _, s := range samples {
		said := fmt.Sprintf("%s at %v of %v", s.pod, s.limits, s.owed)
		if s.ceiling > 0 {
			said += fmt.Sprintf(" with a ceiling of %dm", s.ceiling)
		}
		all = append(all, said)
	}
	if all == nil {
		return "no container is seen"
	}
	return strings.Join(all, ", ")
}

// oomKills and violations count from the beginning of the watch. what describes the
// violations, with their times relative to the fault.
func (w *watcher) oomKills() (n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, kills := range w.ooms {
		n += kills - w.oomsBefore[id]
	}
	return n
}

func (w *watcher) violations(fault time.Time) (n int, what []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.tracker.violations() {
		n++
		what = append(what, fmt.Sprintf("%+.2f s from the beginning of the fault, the CPU limits in force added up to %dm more than is owed, for %.2f s: %s",
			e.from.Sub(fault).Seconds(), e.most, e.length().Seconds(), describe(e.at)))
	}
	for _, b := range w.tracker.breaches() {
		n++
		what = append(what, fmt.Sprintf("%+.2f s from the beginning of the fault, for %.2f s: %s", b.from.Sub(fault).Seconds(), b.length().Seconds(), b.what))
	}
	for id, told := range w.told {
		if more := told - w.toldBefore[id]; more > 0 {
			n += int(more)
			what = append(what, fmt.Sprintf("violations of invariants that an agent counted: %v", more))
		}
	}
	for problem := range w.wrong {
		n++
		what = append(what, problem)
	}
	return n, what
}
