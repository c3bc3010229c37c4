package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/settings"
)

var aRepair = []string{"p 501m/256Mi", "p 500m/256Mi"}

func TestRepair(t *testing.T) {
	away := func(h *harness) { h.agent(false) }
	tests := map[string]struct {
		change []func(*corev1.Pod)
		before func(h *harness) // applied before the controller first looks
		during func(h *harness) // after the agent has become unready
		want   []string
	}{
		"an agent goes":                     {want: aRepair},
		"without Redis":                     {during: func(h *harness) { h.pool.err = errors.New("away") }, want: aRepair},
		"only observed":                     {change: []func(*corev1.Pod){annotated(api.ModeAnnotation, "observe")}},
		"only observed, and resized before": {change: []func(*corev1.Pod){annotated(api.ModeAnnotation, "observe"), byLibra}, want: aRepair},
		"only observed of late": {during: func(h *harness) {
			h.change("p", annotated(api.ModeAnnotation, "observe"))
		}, want: aRepair},
		"the pool hears it":                    {during: func(h *harness) { h.pool.silent = false }},
		"the start, of an older pod":           {before: away, change: []func(*corev1.Pod){old}, want: aRepair},
		"a pod that is younger than the start": {before: away},
		"left alone":                           {change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Containers[1].Resources.Limits = res(1000, 0).List() }}},
		"the agent comes back in time":         {during: func(h *harness) { h.agent(true) }},
		"another takes its place in time":      {during: func(h *harness) { h.create(testAgent("another", ready)) }},
		"going away":                           {change: []func(*corev1.Pod){goingAway}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testRevision(owed), testPod("p", owed, tc.change...))
			if tc.before != nil {
				tc.before(h)
			}
			h.expect()
			h.agent(false)
			h.expect()
			if tc.during != nil {
				tc.during(h)
			}
			if got := h.wait(repairAfter - heldTick); got != nil {
				t.Errorf("patches %v before the agent could be back, want none", got)
			}
			if diff := cmp.Diff(tc.want, h.follow(time.Minute)); diff != "" {
				t.Errorf("patches (-want +got):\n%s", diff)
			}
			if got := h.total("libra.resizer.resizes", reasonKey.String(reasonRepair), resultKey.String(resultAccepted)); int(got) != len(tc.want) {
				t.Errorf("%v patches of repairs, want %d", got, len(tc.want))
			}
		})
	}
}

// wait reconciles for d, with a kubelet that does nothing, and returns the patches.
func (h *harness) wait(d time.Duration) []string {
	h.t.Helper()
	var got []string
	for end := h.clock.Now().Add(d); h.clock.Now().Before(end); h.clock.Step(heldTick) {
		got = append(got, h.reconcile()...)
	}
	return got
}

// The next container of a pod begins with the limit that its spec has, and with the weight that
// the agent left the pod.
func TestRepairWaitsForAContainer(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed, func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }))
	h.expect()
	h.agent(false)
	if got := h.wait(time.Minute); got != nil {
		t.Errorf("patches %v of what does not run, want none", got)
	}
	h.kubelet()
	if diff := cmp.Diff(aRepair, h.follow(time.Minute)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// Without room for more, the kubelet is made to write less.
func TestRepairWithoutRoom(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.expect()
	h.quotaOf(owed.CPUMilli)
	h.agent(false)
	if diff := cmp.Diff([]string{"p 499m/256Mi", "p 500m/256Mi"}, h.follow(time.Minute)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

func TestSilentNodesAreCounted(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	for _, isReady := range []bool{true, false, true} {
		h.agent(isReady)
		h.reconcile()
		if got := h.total("libra.resizer.node.silent", nodeKey.String("n1")); (got == 0) != isReady {
			t.Errorf("node silent = %v with an agent that is ready: %v", got, isReady)
		}
	}
}

// The second patch must not hide the first from the kubelet.
func TestRepairWaitsForTheKubelet(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.expect()
	h.agent(false)
	if diff := cmp.Diff(aRepair[:1], h.wait(time.Minute)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	h.kubelet()
	h.expect(aRepair[1])
}

func TestRepairOncePerSilence(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	for range 3 {
		h.agent(true)
		h.expect()
		h.agent(false)
		if diff := cmp.Diff(aRepair, h.follow(time.Hour)); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	}
}

// An agent that comes and goes before it was ever ready may have changed pods, too.
func TestRepairAfterAnAgentThatWasNeverReady(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.agent(true)
	h.expect()
	h.agent(false)
	if diff := cmp.Diff(aRepair, h.follow(time.Hour)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	h.pool.silent = false
	h.expect()
	h.pool.silent = true
	if diff := cmp.Diff(aRepair, h.follow(time.Hour)); diff != "" {
		t.Errorf("patches after another agent (-want +got):\n%s", diff)
	}
}

// On a node that has nothing of a former agent's, an agent may work and end before it is ever ready.
func TestRepairAfterTheFirstAgentWasNeverReady(t *testing.T) {
	h := newHarness(t, testRevision(owed), testPod("p", owed))
	h.agent(false)
	h.pool.silent = false
	h.expect()
	h.pool.silent = true
	if diff := cmp.Diff(aRepair, h.follow(time.Hour)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// What an agent may have left behind is decided once. What is not known then may be anything.
func TestRepairBeforeEverythingIsRead(t *testing.T) {
	t.Run("settings", func(t *testing.T) {
		h := newHarness(t, testRevision(owed), testPod("p", owed, old))
		full := h.following.now
		h.following.unsynced, h.following.now = true, settings.Absent
		h.agent(false)
		got := h.follow(livePatience + 2*repairAfter)
		h.following.unsynced, h.following.now = false, full
		if diff := cmp.Diff(aRepair, append(got, h.follow(time.Minute)...)); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	})
	t.Run("the Revision", func(t *testing.T) {
		h := newHarness(t, testPod("p", owed, old))
		h.agent(false)
		got := h.follow(2 * repairAfter)
		if err := h.kube.Create(t.Context(), testRevision(owed)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(aRepair, append(got, h.follow(time.Minute)...)); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	})
}

// A pod without a CPU limit has nothing that is the agent's.
func TestNoRepairWithoutACPULimit(t *testing.T) {
	h := newHarness(t, testRevision(res(0, 256)), testPod("p", res(0, 256)))
	h.expect()
	h.agent(false)
	if got := h.follow(time.Minute); got != nil {
		t.Errorf("patches %v, want none", got)
	}
}

// The agent may have left less than the ceiling in a cgroup, and no quota has room for more.
func TestRepairOfACeiling(t *testing.T) {
	h := withCeilings(t, testPod("p", owed, ready))
	h.expect("p 2000m/256Mi")
	h.kubelet()
	h.agent(false)
	h.quotaOf(2000)
	if diff := cmp.Diff([]string{"p 1999m/256Mi", "p 2000m/256Mi"}, h.follow(time.Minute)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// A pod that had borrowed may hold too much, and comes first; a pod that lent waits until that is
// taken back, or could have been. Pods with a ceiling are in nobody's way.
func TestBorrowersAreRepairedFirst(t *testing.T) {
	h := newHarness(t, testRevision(owed), testNode(2000), testPod("borrower", owed), testPod("donor", owed),
		testPod("above", res(2000, 256), byLibra, ready, annotated(api.ModeAnnotation, "full")))
	h.pool.raised = []string{"default/borrower"} // which has nothing on loan by now
	h.expect("above 500m/256Mi")
	h.kubelet()
	h.expect()
	h.agent(false)
	h.expect()
	h.clock.Step(repairAfter)
	h.expect("borrower 501m/256Mi")
	if got := h.wait(borrowersFirst - heldTick); got != nil {
		t.Errorf("patches %v before the kubelet has lowered what the borrower has, want none", got)
	}
	h.kubelet()
	h.expect("borrower 500m/256Mi") // which the kubelet had written by then
	h.expect("above 501m/256Mi", "donor 501m/256Mi")

	// A kubelet that does not answer does not keep a donor from its own for ever.
	h.agent(true)
	h.follow(time.Minute)
	h.agent(false)
	h.expect()
	h.clock.Step(repairAfter)
	h.expect("borrower 501m/256Mi")
	if diff := cmp.Diff([]string{"above 501m/256Mi", "donor 501m/256Mi"}, h.wait(borrowersFirst+heldTick)); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

// cgroups are those of a node's pods: milli CPU.
type cgroups map[string]int64

// write does what a kubelet does: it writes what the spec says when that differs from what it wrote
// last.
func (c cgroups) write(h *harness, wrote map[string]api.Resources) {
	for name := range c {
		if limits := specLimits(h.get(name)); limits != wrote[name] {
			c[name], wrote[name] = limits.CPUMilli, limits
		}
	}
	h.kubelet()
}

// Whatever an agent left in cgroups, with or without a ceiling, and whatever else was under way:
// ten seconds after it is gone, every cgroup is what the spec says, and the CPU in the spec is what
// it is without loans. Memory that was given stays while nobody tells what is in use.
func TestWholeWithinTenSeconds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		objects, names := []client.Object{testRevision(owed), testNode(2000)}, []string{"a", "b", "c"}
		for _, name := range names {
			objects = append(objects, testPod(name, owed, ready))
		}
		h := newHarness(t, objects...)
		if rapid.Bool().Draw(rt, "under source node") {
			h.following.now = underNode
		}
		kernel, wrote := cgroups{}, map[string]api.Resources{}
		for _, name := range names {
			kernel[name], wrote[name] = owed.CPUMilli, owed
		}
		run := func(d time.Duration, late time.Duration) {
			written := h.clock.Now()
			for end := h.clock.Now().Add(d); h.clock.Now().Before(end); {
				_, again := h.reconcileResult()
				if h.clock.Since(written) >= late {
					kernel.write(h, wrote)
					written = h.clock.Now()
				}
				h.clock.Step(min(again, 100*time.Millisecond))
			}
		}
		late := time.Duration(rapid.IntRange(0, 1000).Draw(rt, "the kubelet is late by")) * time.Millisecond
		h.pool.pods = map[string]pool.Balance{}
		for _, name := range names {
			h.pool.pods["default/"+name] = pool.Balance{Borrowed: res(rapid.Int64Range(0, 1).Draw(rt, "borrowed")*100, rapid.Int64Range(0, 1).Draw(rt, "memory")*64)}
		}
		run(time.Duration(rapid.IntRange(1, 3000).Draw(rt, "so far"))*time.Millisecond, late)

		for _, name := range names {
			kernel[name] = rapid.Int64Range(100, 2000).Draw(rt, "left")
		}
		h.agent(false)
		h.pool.silent = false // for a lease
		h.pool.pods = nil
		run(pool.LeaseTTL, late)
		h.pool.silent = true
		run(10*time.Second-pool.LeaseTTL, late)
		for _, name := range names {
			want := owed
			if h.following.now == underNode {
				want.CPUMilli = 2000
			}
			if got := specLimits(h.get(name)); got.CPUMilli != want.CPUMilli || got.MemoryBytes < want.MemoryBytes {
				rt.Errorf("the spec of %s says %v, want %v, or more memory", name, got, want)
			}
			if kernel[name] != want.CPUMilli {
				rt.Errorf("the cgroup of %s has %dm, want %dm", name, kernel[name], want.CPUMilli)
			}
		}
	})
}

// Repairs that a rate limit holds back are not forgotten.
func TestRepairsAfterARateLimit(t *testing.T) {
	objects := []client.Object{testRevision(owed)}
	var want []string
	for i := range testSettings.Burst {
		name := string(rune('a' + i))
		objects, want = append(objects, testPod(name, owed)), append(want, name+" 500m/256Mi")
	}
	h := newHarness(t, objects...)
	h.expect()
	h.agent(false)
	got := h.follow(10 * time.Second)
	got = slices.DeleteFunc(got, func(p string) bool { return p[2:] != "500m/256Mi" })
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}
