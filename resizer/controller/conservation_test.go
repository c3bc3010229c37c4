package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// liveNode is a node of which the agent may be paused at any moment, Redis and the API
// server may be away, and the kubelet takes up to a second for each patch. Beside the pods
// whose owners lend there are some with a ceiling, which the agent clamps at times.
type liveNode struct {
	*harness
	rapid *rapid.T
	pool  *awayPool

	pods    []string
	beside  []string // under source node
	clamped bool
	cgroups map[string]int64         // milli CPU in force
	written map[string]api.Resources // what the kubelet wrote last
	writeAt map[string]time.Time     // when it writes what it has not seen yet
	told    map[string]told          // what it has yet to write
	late    map[string]time.Time     // when it gave what the agent had taken back, and has not since
	running map[string]string        // invocations, by pod
	begun   int

	paused bool
	due    map[string]int64 // milli CPU, by the state that the agent read last
	acts   int              // how often it acted
	state  pool.State
	readAt time.Time
	beatAt time.Time
	cutOff bool // it wrote without Redis while the controller took it for gone

	mutual bool // two that had lent to each other are being nudged

	answeredAt time.Time // when the API server was there last

	checked, unchecked int
}

// told is since when the kubelet knows of a pod's generation.
type told struct {
	generation int64
	due        int64 // milli CPU, by the pool
	acts       int   // how often the agent had acted
}

// awayPool is a pool that may not be reached.
type awayPool struct {
	*pool.Memory
	err error
}

func (p *awayPool) Read(ctx context.Context, node string) (pool.State, error) {
	if p.err != nil {
		return pool.State{}, p.err
	}
	return p.Memory.Read(ctx, node)
}

const (
	besideNamespace = "beside"
	ceilingBeside   = 2000 // milli CPU

	step = 50 * time.Millisecond
	// outageMost is how long the API server is away at most: a controller that cannot renew
	// its lease ends, and another one begins after that.
	outageMost = 10 * time.Second
)

func drawLiveNode(t *testing.T, r *rapid.T) *liveNode {
	n := &liveNode{
		rapid: r, cgroups: map[string]int64{}, written: map[string]api.Resources{}, writeAt: map[string]time.Time{}, running: map[string]string{},
		told: map[string]told{}, late: map[string]time.Time{},
	}
	elsewhere := testRevision(owed)
	elsewhere.Namespace = besideNamespace
	objects := []client.Object{testRevision(owed), elsewhere, testNode(ceilingBeside)}
	for i := range rapid.IntRange(0, 2).Draw(r, "pods with a ceiling") {
		name := fmt.Sprint("beside", i)
		n.beside = append(n.beside, name)
		n.cgroups[name], n.written[name] = owed.CPUMilli, owed
		objects = append(objects, testPod(name, owed, ready, func(p *corev1.Pod) { p.Namespace = besideNamespace }))
	}
	for i := range rapid.IntRange(2, 4).Draw(r, "pods") {
		name := fmt.Sprint("pod", i)
		n.pods = append(n.pods, name)
		n.cgroups[name], n.written[name] = owed.CPUMilli, owed
		objects = append(objects, testPod(name, owed))
	}
	n.harness = newHarness(t, objects...)
	n.following.sources = map[string]api.Source{besideNamespace: api.SourceNode}
	n.pool = &awayPool{Memory: pool.NewMemory(n.clock)}
	n.pools = n.pool
	n.agent()
	n.reconcile()
	return n
}

func (n *liveNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// agent does what an agent that runs does within a step: it lowers, and raises by the
// state that it had lowered by.
func (n *liveNode) agent() {
	if n.paused {
		return
	}
	n.acts++
	clear(n.late)
	now := n.clock.Now()
	left := maps.Clone(n.cgroups)
	taking := map[string]int64{}
	for _, name := range n.pods {
		taking["default/"+name] = 0
		n.cgroups[name] = max(n.cgroups[name], min(n.due[name], owed.CPUMilli))
	}
	state, err := n.pool.Read(n.t.Context(), "n1")
	if err == nil {
		n.state, n.readAt = state, now
	}
	before := n.due
	n.due = map[string]int64{}
	for _, name := range n.pods {
		n.due[name] = owed.CPUMilli
		if now.Sub(n.readAt) <= pool.LeaseTTL {
			b := n.state.Pods["default/"+name]
			n.due[name] += b.Borrowed.CPUMilli - b.Lent.CPUMilli
		}
		n.cgroups[name] = min(n.cgroups[name], n.due[name])
	}
	for _, name := range n.pods {
		if before[name] == n.due[name] || n.due[name] <= owed.CPUMilli {
			n.cgroups[name] = n.due[name]
		}
	}
	for _, name := range n.beside {
		if n.cgroups[name] = n.written[name].CPUMilli; n.clamped {
			n.cgroups[name] = owed.CPUMilli
		}
	}
	n.cutOff = err != nil && n.node("n1").silent && (n.cutOff || !maps.Equal(n.cgroups, left))
	if err == nil && !now.Before(n.beatAt) {
		n.beatAt = now.Add(time.Second)
		_, err := n.pool.Heartbeat(n.t.Context(), "n1", pool.Heartbeat{Agent: "a1", Epoch: n.state.Epoch, Whole: true, Acted: n.state.Version,
			Lendable: res(4000, 4096), Pods: taking})
		n.must(err)
	}
}

// kubelet writes what it was told of in time, CPU and memory together, unless it is
// what it wrote last.
func (n *liveNode) kubelet() {
	var pods corev1.PodList
	n.must(n.kube.List(n.t.Context(), &pods))
	now := n.clock.Now()
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Generation == p.Status.ObservedGeneration {
			continue
		}
		if n.writeAt[p.Name].IsZero() {
			n.writeAt[p.Name] = now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 300, 1000}).Draw(n.rapid, "kubelet ms")) * time.Millisecond)
		}
		if n.told[p.Name].generation != p.Generation {
			state, err := n.pool.Memory.Read(n.t.Context(), "n1")
			n.must(err)
			b := state.Pods["default/"+p.Name]
			n.told[p.Name] = told{p.Generation, owed.CPUMilli + b.Borrowed.CPUMilli - b.Lent.CPUMilli, n.acts}
		}
		if now.Before(n.writeAt[p.Name]) {
			continue
		}
		limits := specLimits(p)
		if limits != n.written[p.Name] {
			delete(n.late, p.Name)
			if was := n.told[p.Name]; n.acts > was.acts && n.due[p.Name]+nudgeMilli < limits.CPUMilli && limits.CPUMilli <= was.due+nudgeMilli {
				n.late[p.Name] = now
			}
			n.cgroups[p.Name], n.written[p.Name] = limits.CPUMilli, limits
		}
		n.writeAt[p.Name] = time.Time{}
		p.Status.ObservedGeneration = p.Generation
		p.Status.ContainerStatuses = running(limits)
		n.update(p)
	}
}

// pass lets time pass.
func (n *liveNode) pass(d time.Duration) {
	for end := n.clock.Now().Add(d); n.clock.Now().Before(end); {
		n.clock.Step(step)
		if n.patchErr == nil {
			n.answeredAt = n.clock.Now()
		} else if n.clock.Since(n.answeredAt) >= outageMost {
			n.patchErr = nil
		}
		n.must(n.pool.Renew(n.t.Context(), "n1", "activator"))
		if rapid.Bool().Draw(n.rapid, "the agent is faster") {
			n.agent()
		}
		n.reconcile()
		n.kubelet()
		n.agent()
		n.check()
	}
}

// check is invariant 1, conservation, unless it is excused, and invariant 2 in any case.
func (n *liveNode) check() {
	for _, name := range n.beside {
		if cpu := n.cgroups[name]; cpu < owed.CPUMilli || cpu > ceilingBeside {
			n.rapid.Fatalf("in force of %s is %dm, want it between %dm and its ceiling of %dm", name, cpu, owed.CPUMilli, ceilingBeside)
		}
	}
	if n.excused() {
		n.unchecked++
		return
	}
	n.checked++
	var inForce, most int64
	for _, name := range n.pods {
		inForce += n.cgroups[name]
		most += owed.CPUMilli + nudgeMilli
	}
	if inForce > most {
		n.rapid.Fatalf("in force are %v: %dm of %dm", n.cgroups, inForce, most)
	}
}

// excused says that conservation cannot be asked for, by the rules that docs/resizer.md
// gives. What a pod had to wait too long for it gets in any case. When two have lent to each
// other, nobody can tell what an agent left in which, and they are written together. What
// the kubelet was told before a balance changed it may write after the agent has acted on
// that, and only the agent can put it right at once. And nobody is told what an agent does
// that is cut off from Redis.
func (n *liveNode) excused() bool {
	now := n.clock.Now()
	nudged, eitherWay := false, 0
	impatient, late := false, false
	for _, name := range n.pods {
		m := n.node("n1").pods["default/"+name]
		impatient = impatient || m.impatient
		late = late || now.Sub(n.late[name]) < waitPatience+outagePatience
		if since := cmp.Or(m.nudgeAt, m.nudgeWas); !since.IsZero() {
			nudged = true
			if m.low < m.owed.CPUMilli && m.granted > m.owed.CPUMilli && now.Sub(since) >= nudgePatience {
				eitherWay++
			}
		}
	}
	n.mutual = nudged && (n.mutual || eitherWay > 1)
	return impatient || late || n.mutual || n.cutOff && n.paused
}

func (n *liveNode) begin(pod string) {
	if n.running[pod] != "" {
		return
	}
	n.begun++
	inv := pool.Invocation{ID: fmt.Sprint(n.begun), Function: "default/f", Pod: "default/" + pod, Domain: "default", Owner: "activator",
		Predicted: res(200, 64), Duration: time.Minute, Allocation: owed}
	amount := rapid.SampledFrom([]api.Resources{res(100, 0), res(200, 64), res(400, 0), res(0, 64)}).Draw(n.rapid, "amount")
	if rapid.Bool().Draw(n.rapid, "lends") {
		inv.Surplus = amount
	} else {
		inv.Want = amount
	}
	_, err := n.pool.Begin(n.t.Context(), "n1", inv)
	n.must(err)
	n.running[pod] = inv.ID
}

func (n *liveNode) end(pod string) {
	if id := n.running[pod]; id != "" {
		_, err := n.pool.End(n.t.Context(), "n1", pool.Ending{ID: id, Duration: time.Second, Status: 200})
		n.must(err)
		delete(n.running, pod)
	}
}

// whole says that every pod has what it is owed, in its cgroup and in its spec, and every
// one with a ceiling that: or its allocation, which check sees to, where an agent that was
// taken for gone held it for bystanders after the kubelet wrote it, and hangs.
func (n *liveNode) whole() bool {
	held := n.paused && n.cutOff
	return !slices.ContainsFunc(n.beside, func(pod string) bool { return n.cgroups[pod] != ceilingBeside && !held }) && !slices.ContainsFunc(n.pods, func(pod string) bool {
		return n.cgroups[pod] != owed.CPUMilli || specLimits(n.get(pod)) != owed
	})
}

// Invariants 1 and 5: whatever an agent left when it was paused, and however long the
// kubelet takes for which pod, no donor is restored before who borrowed of it is shrunk,
// and all are whole within the time for it.
func TestConservationWhateverAnAgentLeft(t *testing.T) {
	checked, unchecked := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		n := drawLiveNode(t, r)
		for range rapid.IntRange(5, 20).Draw(r, "steps") {
			pod := rapid.SampledFrom(n.pods).Draw(r, "pod")
			switch rapid.SampledFrom([]string{"begin", "begin", "begin", "end", "end", "pause", "resume", "redis", "api", "clamp"}).Draw(r, "what") {
			case "begin":
				n.begin(pod)
			case "end":
				n.end(pod)
			case "pause":
				n.paused = true
			case "resume":
				n.paused = false
			case "clamp":
				n.clamped = !n.clamped
			case "redis":
				n.pool.err = rapid.SampledFrom([]error{nil, nil, errors.New("away")}).Draw(r, "redis")
			case "api":
				n.patchErr = rapid.SampledFrom([]error{nil, nil, errors.New("away")}).Draw(r, "api")
			}
			n.pass(time.Duration(rapid.SampledFrom([]int{0, 50, 200, 1000, 3000}).Draw(r, "ms")) * time.Millisecond)
		}
		for _, pod := range n.pods {
			n.end(pod)
		}
		n.pool.err, n.patchErr, n.clamped = nil, nil, false
		for deadline := n.clock.Now().Add(pool.LeaseTTL + waitPatience + 5*time.Second); !n.whole(); n.pass(time.Second) {
			if n.clock.Now().After(deadline) {
				r.Fatalf("in force are %v; not all pods are whole", n.cgroups)
			}
		}
		checked, unchecked = checked+n.checked, unchecked+n.unchecked
	})
	if checked < 10*unchecked {
		t.Errorf("conservation was checked %d times only, and excused %d times", checked, unchecked)
	}
}
