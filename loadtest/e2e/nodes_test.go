//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/serving"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/resizer/cgroup"
)

const (
	firstWorker = "w1"
	// sharedPods is how many pods a shared function has.
	sharedPods = 4
	// rescheduledWithin is how long it takes after a node is gone until its pods are elsewhere: 20 s
	// until its lease is missed, 5 s that each pod tolerates, a check every 5 s, and a start.
	rescheduledWithin = time.Minute
	// cutOff is shorter than it takes until a node counts as gone.
	cutOff = 10 * time.Second

	faultTimeout = 2 * time.Minute
)

// workers returns the nodes that functions run on. It skips the test on a box without several.
func workers(ctx context.Context, t *testing.T) []string {
	t.Helper()
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range nodes.Items {
		if n.Name != boxNode {
			names = append(names, n.Name)
		}
	}
	if len(names) < 2 {
		t.Skip("the box has no two workers: make e2e NODES=3")
	}
	slices.Sort(names)
	return names
}

func TestNodesAreReadyAndDivideTheMachine(t *testing.T) {
	ctx := t.Context()
	all := append([]string{boxNode}, workers(ctx, t)...)
	nodes := map[string]*corev1.Node{}
	for _, name := range all {
		node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			t.Errorf("node %s has the conditions %v", name, node.Status.Conditions)
		}
		nodes[name] = node
	}
	machine := nodes[boxNode].Status.Capacity
	var cpus, bytes int64
	zones := map[string]bool{}
	for _, name := range all[1:] {
		allocatable := nodes[name].Status.Allocatable
		cpus += allocatable.Cpu().MilliValue()
		bytes += allocatable.Memory().Value()
		zones[nodes[name].Labels[corev1.LabelTopologyZone]] = true
	}
	if cpus != machine.Cpu().MilliValue() {
		t.Errorf("workers can give %dm of CPU, the machine has %v", cpus, machine.Cpu())
	}
	if bytes >= machine.Memory().Value() || bytes <= 0 {
		t.Errorf("workers can give %d bytes of memory, the machine has %v", bytes, machine.Memory())
	}
	if len(zones) != len(all)-1 || zones[""] {
		t.Errorf("the zones of %d workers are %v", len(all)-1, zones)
	}
	// An agent reports only what its own node can lend.
	pools := pool.NewRedis(redisServer)
	defer pools.Close() //nolint:errcheck // read only
	for _, name := range all[1:] {
		eventually(t, time.Minute, "agent of node "+name, func() error {
			state, err := pools.Read(ctx, name)
			if err == nil && state.Agent == "" {
				err = errors.New("the pool has not heard of it")
			}
			return err
		})
	}
}

// A function with several pods has some on each worker and none on the control node, and all of them
// answer through the gateway.
func TestWorkersShareAFunction(t *testing.T) {
	ctx := t.Context()
	names := workers(ctx, t)
	namespace := newNamespace(ctx, t, "shared", api.SourceNode)
	name := deployShared(ctx, t, namespace, sharedPods)
	functions := functionsOf(ctx, t, namespace, name, sharedPods)
	on := map[string]int{}
	before := map[string]time.Duration{}
	for _, f := range functions {
		on[f.node]++
		before[f.pod] = usedCPU(t, f)
	}
	for _, worker := range names {
		if on[worker] == 0 {
			t.Errorf("of %d pods none is on %s: %v", len(functions), worker, on)
		}
	}
	if on[boxNode] > 0 {
		t.Errorf("%d pods are on the control node", on[boxNode])
	}
	var sending sync.WaitGroup
	for range sharedPods {
		sending.Go(func() {
			for range 10 {
				if _, err := sendIn(ctx, namespace, name, compressionBody); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sending.Wait()
	for _, f := range functions {
		if used := usedCPU(t, f) - before[f.pod]; used < 10*time.Millisecond {
			t.Errorf("pod %s on %s has used %v: no request came to it", f.pod, f.node, used)
		}
	}
	// Each agent knows of its own pods only.
	pools := pool.NewRedis(redisServer)
	defer pools.Close() //nolint:errcheck // read only
	for _, worker := range names {
		state, err := pools.Read(ctx, worker)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range functions {
			if _, there := state.InFlight[namespace+"/"+f.pod]; there && f.node != worker {
				t.Errorf("the pool of %s has pod %s of %s", worker, f.pod, f.node)
			}
		}
	}
}

// Loans on two workers lower and raise limits at the same time, each on its own worker only. When
// both have ended, all have what they are owed.
func TestLendingOnEachWorkerApart(t *testing.T) {
	ctx := t.Context()
	names := workers(ctx, t)
	pairs := map[string][2]function{}
	for _, worker := range names {
		namespace := newNamespaceOn(ctx, t, "lending", worker, api.SourceOwners)
		service := deployShared(ctx, t, namespace, 2)
		functions := functionsOf(ctx, t, namespace, service, 2)
		for _, f := range functions {
			if f.node != worker {
				t.Fatalf("pod %s is on %s, and its namespace's place is %s", f.pod, f.node, worker)
			}
		}
		pairs[worker] = [2]function{functions[0], functions[1]}
	}
	var all []function
	for _, pair := range pairs {
		all = append(all, pair[:]...)
	}
	waitWhole(t, time.Now().Add(wholeWithin), all...)

	first, second := names[0], names[1]
	endFirst := lend(ctx, t, pairs[first])
	for _, other := range pairs[second] {
		if limits, err := other.cgroups.Limits(); err != nil || limits.CPUMilli != other.allocation.CPUMilli {
			t.Errorf("with a loan on %s, %s on %s is at %v of %v (%v)", first, other.pod, second, limits, other.allocation, err)
		}
	}
	endSecond := lend(ctx, t, pairs[second])
	endFirst()
	waitWhole(t, time.Now().Add(wholeWithin), pairs[first][0], pairs[first][1])
	endSecond()
	waitWhole(t, time.Now().Add(wholeWithin), all...)
}

// lend makes a loan from the first of a pair to the second, and waits until it is in their
// cgroups. It stands until end is called.
func lend(ctx context.Context, t *testing.T, pair [2]function) (end func()) {
	t.Helper()
	pools := pool.NewRedis(redisServer)
	donor, borrower := pair[0], pair[1]
	node, owner := donor.node, "e2e-"+rand.String(5)
	half := donor.allocation.CPUMilli / 2
	stopRenewing := repeatedly(ctx, t, "renewing the lease on "+node, func(ctx context.Context) error {
		defer func() { <-time.After(time.Second) }()
		return pools.Renew(ctx, node, owner)
	})
	var ids []string
	begin := func(of function, surplus, want int64) (granted int64, err error) {
		inv := pool.Invocation{
			ID: owner + "-" + rand.String(5), Function: of.namespace + "/" + of.revision,
			Pod: of.namespace + "/" + of.pod, Domain: of.namespace, Owner: owner, Size: api.UnknownSize,
			Allocation: of.allocation, Duration: time.Minute, WithoutLoan: time.Minute,
			Surplus: api.Resources{CPUMilli: surplus}, Want: api.Resources{CPUMilli: want}, WantMostMilli: want,
		}
		got, err := pools.Begin(ctx, node, inv)
		ids = append(ids, inv.ID)
		return got.CPUMilli, err
	}
	endAll := func() {
		for _, id := range slices.Backward(ids) {
			if _, err := pools.End(context.WithoutCancel(ctx), node, pool.Ending{ID: id, Late: true}); err != nil {
				t.Error(err)
			}
		}
		ids = nil
	}
	// The pool lends nothing of pods that are new to it until they have been seen at rest.
	eventually(t, time.Minute, "loan on "+node, func() error {
		_, err := begin(donor, half, 0)
		granted := int64(0)
		if err == nil {
			granted, err = begin(borrower, 0, half)
		}
		if err == nil && granted == 0 {
			err = errors.New("nothing was granted")
		}
		if err != nil {
			endAll()
		}
		return err
	})
	eventually(t, 3*time.Second, "limits of a loan on "+node, func() error {
		low, err := donor.cgroups.Limits()
		if err != nil {
			return err
		}
		high, err := borrower.cgroups.Limits()
		if err == nil && (low.CPUMilli >= donor.allocation.CPUMilli || high.CPUMilli <= borrower.allocation.CPUMilli) {
			err = fmt.Errorf("the donor has %dm of %dm, the borrower %dm of %dm", low.CPUMilli, donor.allocation.CPUMilli, high.CPUMilli, borrower.allocation.CPUMilli)
		}
		return err
	})
	return func() {
		endAll()
		stopRenewing()
		if err := pools.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A worker that is gone, or cut off for too short a time to count as gone, harms no other. The pods
// of one that is gone soon run elsewhere, and one that comes back is used again.
func TestAWorkerAway(t *testing.T) {
	if *boxCommand == "" {
		t.Skip("-box says what to take a worker away with")
	}
	ctx := t.Context()
	names := workers(ctx, t)
	stays, goes := names[0], names[len(names)-1]
	beside := newNamespaceOn(ctx, t, "beside", stays, api.SourceNode)
	unharmed := deployShared(ctx, t, beside, 1)
	there := functionsOf(ctx, t, beside, unharmed, 1)[0]
	spread := newNamespace(ctx, t, "spread", api.SourceNode)
	shared := deployShared(ctx, t, spread, len(names))
	functionsOf(ctx, t, spread, shared, len(names))

	for _, fault := range []struct {
		name       string
		away, back string // commands of the box
		gone       bool
	}{
		{"link", "link-down", "link-up", false},
		{"node", "node-stop", "node-start", true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			ctx := t.Context()
			away := false
			back := func() {
				if away {
					away = false
					box(t, fault.back, goes)
				}
			}
			defer back()
			stop := requestsTo(ctx, t, beside, unharmed)
			away = true
			box(t, fault.away, goes)
			if fault.gone {
				began := time.Now()
				eventually(t, rescheduledWithin, "pods on other nodes", func() error {
					on, err := readyOn(ctx, spread, shared)
					if err == nil && (on[goes] > 0 || total(on) < len(names)) {
						err = fmt.Errorf("ready pods by node: %v", on)
					}
					return err
				})
				t.Logf("%d pods were ready without %s %v after it had gone", len(names), goes, time.Since(began).Round(time.Second))
			} else {
				<-time.After(cutOff)
			}
			if fault.gone {
				eventually(t, wholeWithin, "answer without "+goes, func() error {
					_, err := sendIn(ctx, spread, shared, compressionBody)
					return err
				})
			}
			back()
			stop()
			if container := functionsOf(ctx, t, beside, unharmed, 1)[0]; container.containerID != there.containerID {
				t.Errorf("the container of %s on %s is another than before", unharmed, stays)
			}
			// All its pods are whole, the old ones and the new ones.
			functions := functionsOf(ctx, t, spread, shared, len(names))
			eventually(t, wholeWithin, "ceilings of all pods", func() error {
				for _, f := range functions {
					if err := cgroupAt(f, ceilingOf(ctx, t, podOf(ctx, t, f.namespace, f), f.allocation.CPUMilli)); err != nil {
						return fmt.Errorf("%s on %s: %w", f.pod, f.node, err)
					}
				}
				return nil
			})
			pools := pool.NewRedis(redisServer)
			defer pools.Close() //nolint:errcheck // read only
			eventually(t, time.Minute, "agent of "+goes, func() error {
				state, err := pools.Read(ctx, goes)
				if err == nil && (state.Agent == "" || !state.Open) {
					err = fmt.Errorf("its pool is open: %t, its agent is %q", state.Open, state.Agent)
				}
				return err
			})
			if _, err := sendIn(ctx, spread, shared, compressionBody); err != nil {
				t.Error(err)
			}
		})
	}
}

// requestsTo sends a function one request after the other until stop. Each failed request fails the
// test.
func requestsTo(ctx context.Context, t *testing.T, namespace, function string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	answered := 0
	done.Go(func() {
		for ctx.Err() == nil {
			if _, err := sendIn(context.WithoutCancel(ctx), namespace, function, []byte("hello")); err != nil {
				t.Errorf("request beside the fault: %v", err)
			}
			answered++
			<-time.After(50 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
		t.Logf("%d requests beside the fault", answered)
	})
	t.Cleanup(stop)
	return stop
}

// box runs the box's command.
func box(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), faultTimeout)
	defer cancel()
	if said, err := exec.CommandContext(ctx, *boxCommand, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", *boxCommand, strings.Join(args, " "), err, said)
	}
}

// newNamespaceOn is newNamespace, with the pods on one node.
func newNamespaceOn(ctx context.Context, t *testing.T, prefix, node string, source api.Source) string {
	t.Helper()
	namespace := newNamespace(ctx, t, prefix, source)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		"scheduler.alpha.kubernetes.io/node-selector": corev1.LabelHostname + "=" + node}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	return namespace
}

// deployShared deploys a copy of a function that needs nothing else, with so many pods, and returns
// its name.
func deployShared(ctx context.Context, t *testing.T, namespace string, pods int) string {
	t.Helper()
	scale := fmt.Sprint(pods)
	revision := deployChanged(ctx, t, namespace, "compression", "nodes", func(template *servingv1.RevisionTemplateSpec) {
		for key, value := range map[string]string{
			autoscaling.MinScaleAnnotationKey: scale, autoscaling.MaxScaleAnnotationKey: scale, api.ModeAnnotation: string(api.ModeFull),
		} {
			metav1.SetMetaDataAnnotation(&template.ObjectMeta, key, value)
		}
	})
	return revision.Labels[serving.ServiceLabelKey]
}

// functionsOf returns the pods of a function, sorted by name, once n are ready.
func functionsOf(ctx context.Context, t *testing.T, namespace, service string, n int) []function {
	t.Helper()
	var found []function
	eventually(t, 2*time.Minute, fmt.Sprintf("%d ready pods of %s", n, service), func() error {
		pods, err := readyPods(ctx, namespace, serving.ServiceLabelKey+"="+service)
		if err == nil && len(pods) != n {
			err = fmt.Errorf("there are %d", len(pods))
		}
		if err != nil {
			return err
		}
		found = nil
		for _, pod := range pods {
			found = append(found, functionIn(ctx, t, service, pod))
		}
		return nil
	})
	slices.SortFunc(found, func(a, b function) int { return strings.Compare(a.pod, b.pod) })
	return found
}

// readyPods returns the ready pods with a label, except those that are being deleted.
func readyPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}), nil
}

// readyOn returns how many ready pods of a function are on each node.
func readyOn(ctx context.Context, namespace, service string) (map[string]int, error) {
	pods, err := readyPods(ctx, namespace, serving.ServiceLabelKey+"="+service)
	on := map[string]int{}
	for _, p := range pods {
		on[p.Spec.NodeName]++
	}
	return on, err
}

func total(counts map[string]int) (sum int) {
	for n := range maps.Values(counts) {
		sum += n
	}
	return sum
}

// usedCPU returns the CPU time that the user container of a function has used so far.
func usedCPU(t *testing.T, f function) time.Duration {
	t.Helper()
	c, err := cgroup.Open(cgroupRoot, f.containerID)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // read only
	reading, err := c.Read()
	if err != nil {
		t.Fatal(err)
	}
	return reading.CPU
}
