package controller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const mi = 1 << 20

func res(cpuMilli, memoryMi int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: memoryMi * mi}
}

var unbounded = api.Resources{CPUMilli: 1 << 40, MemoryBytes: 1 << 60}

// settledPod owes 500m/256Mi and has asked, in force.
func settledPod(name string, asked api.Resources) podLimits {
	return podLimits{name: name, owed: res(500, 256), least: res(100, 256), most: unbounded, asked: asked, possible: asked,
		low: asked.CPUMilli, granted: asked.CPUMilli}
}

func TestPlan(t *testing.T) {
	owed := res(500, 256)
	lent := func(r api.Resources) pool.Balance { return pool.Balance{Lent: r} }
	borrowed := func(r api.Resources) pool.Balance { return pool.Balance{Borrowed: r} }
	patient := func(p *podLimits) { p.patient = true }
	with := func(p podLimits, f func(*podLimits)) podLimits { f(&p); return p }

	tests := map[string]struct {
		pods     []podLimits
		balances map[string]pool.Balance
		recorded bool
		want     []resize
		waiting  []string
	}{
		"whole and no balance: untouched": {
			pods: []podLimits{settledPod("a", owed), settledPod("b", owed)},
		},
		"a donor is lowered, its borrower waits": {
			pods:     []podLimits{settledPod("a", owed), settledPod("b", owed)},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(200, 64))},
			want:     []resize{{"b", res(300, 256), lower}},
		},
		"a decrease that is only asked for pays nothing": {
			pods: []podLimits{settledPod("a", owed), with(settledPod("b", res(300, 256)), func(p *podLimits) {
				p.possible = owed
			})},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 0)), "b": lent(res(200, 0))},
		},
		"the borrower is raised once the decrease is in force": {
			pods:     []podLimits{settledPod("a", owed), settledPod("b", res(300, 256))},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(200, 64))},
			want:     []resize{{"a", res(700, 256), raise}},
		},
		"memory is recorded when an agent has made the transfer": {
			pods:     []podLimits{settledPod("a", owed), settledPod("b", res(300, 256))},
			recorded: true,
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(200, 64))},
			want:     []resize{{"a", res(700, 320), raise}},
		},
		"memory that is recorded stays while it is on loan, agent or not": {
			pods:     []podLimits{settledPod("a", res(500, 320)), settledPod("b", owed)},
			balances: map[string]pool.Balance{"a": borrowed(res(0, 64)), "b": lent(res(0, 64))},
		},
		"memory that the kubelet does not know of goes with a change of CPU": {
			pods: []podLimits{with(settledPod("a", res(700, 256)), func(p *podLimits) { p.unrecorded = 320 * mi }),
				with(settledPod("b", owed), func(p *podLimits) { p.unrecorded = 320 * mi })},
			want: []resize{{"a", res(500, 320), lower}},
		},
		"an impatient restore does not wait and goes first": {
			pods:    []podLimits{settledPod("a", res(700, 320)), settledPod("b", res(300, 192))},
			want:    []resize{{"b", owed, restore}, {"a", owed, lower}},
			waiting: []string{"b"},
		},
		"a patient donor waits while its borrower has it": {
			pods: []podLimits{settledPod("a", res(700, 256)), with(settledPod("b", res(300, 256)), patient)},
			want: []resize{{"a", owed, lower}}, waiting: []string{"b"},
		},
		"and while an agent may have left it with the borrower": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.granted = 700 }), with(settledPod("b", res(300, 256)), patient)},
			want: nil, waiting: []string{"b"},
		},
		"but not for a nudge": {
			pods: []podLimits{settledPod("a", res(501, 256)), with(settledPod("b", res(300, 256)), patient)},
			want: []resize{{"b", owed, restore}, {"a", owed, lower}},
		},
		"less in the spec may be more than an agent left": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.granted = 900 }),
				with(settledPod("b", owed), func(p *podLimits) { patient(p); p.low = 100 })},
			balances: map[string]pool.Balance{"b": lent(res(100, 0))},
			waiting:  []string{"b"},
		},
		"so may a patch of memory": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.granted = 900 }),
				with(settledPod("b", res(500, 320)), func(p *podLimits) { patient(p); p.low = 100 })},
			waiting: []string{"b"},
		},
		"nothing is given before the agent's word": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.awaited = true }),
				with(settledPod("b", res(300, 256)), func(p *podLimits) { p.awaited = true }),
				with(settledPod("c", res(300, 256)), func(p *podLimits) { patient(p); p.awaited = true })},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(200, 64))},
			recorded: true,
			waiting:  []string{"c"},
		},
		"nor does any patch make the kubelet write more than the agent has told that it gave": {
			pods: []podLimits{with(settledPod("a", res(700, 320)), func(p *podLimits) { patient(p); p.low, p.awaited = 500, true }),
				with(settledPod("b", res(700, 320)), func(p *podLimits) { patient(p); p.low, p.awaited = 600, true })},
			balances: map[string]pool.Balance{"a": borrowed(res(100, 0)), "b": borrowed(res(100, 0)), "c": lent(res(200, 0))},
			recorded: true,
			want:     []resize{{"b", res(600, 256), lower}},
		},
		"nor while the kubelet may yet write what was due before": {
			pods: []podLimits{with(settledPod("a", res(700, 256)), func(p *podLimits) { p.overtaken = true }),
				with(settledPod("b", res(300, 256)), patient)},
			recorded: true,
			want:     []resize{{"a", owed, lower}}, waiting: []string{"b"},
		},
		"a donor that takes back a part": {
			pods:     []podLimits{settledPod("a", res(700, 256)), settledPod("b", res(300, 256))},
			balances: map[string]pool.Balance{"a": borrowed(res(50, 0)), "b": lent(res(50, 0))},
			want:     []resize{{"b", res(450, 256), restore}, {"a", res(550, 256), lower}},
			waiting:  []string{"b"},
		},
		"lent memory, borrowed CPU": {
			pods: []podLimits{settledPod("a", owed), settledPod("b", res(300, 256))},
			balances: map[string]pool.Balance{
				"a": {Borrowed: res(200, 0), Lent: res(0, 64)},
				"b": {Borrowed: res(0, 64), Lent: res(200, 0)},
			},
			recorded: true,
			want:     []resize{{"a", res(700, 256), raise}, {"b", res(300, 320), raise}},
		},
		"never below the request": {
			pods:     []podLimits{settledPod("a", owed)},
			balances: map[string]pool.Balance{"a": lent(res(450, 250))},
			want:     []resize{{"a", res(100, 256), lower}},
		},
		"an increase that was refused is given up": {
			pods: []podLimits{with(settledPod("a", res(700, 320)), func(p *podLimits) { p.most = owed }),
				settledPod("b", res(300, 256))},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(200, 64))},
			want:     []resize{{"b", owed, restore}, {"a", owed, lower}},
			waiting:  []string{"b"},
		},
		"the record of a donor does not follow that of its borrower": {
			pods: []podLimits{with(settledPod("a", res(700, 320)), func(p *podLimits) { p.most = owed }),
				settledPod("b", res(300, 256))},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(200, 64))},
			recorded: true,
			want:     []resize{{"a", owed, lower}},
		},
		"what one cannot take stays with as many donors as that": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.most = owed }),
				settledPod("b", owed), settledPod("c", owed), settledPod("d", owed)},
			balances: map[string]pool.Balance{"a": borrowed(res(150, 0)), "b": borrowed(res(50, 0)),
				"c": lent(res(100, 0)), "d": lent(res(100, 0))},
			want: []resize{{"d", res(450, 256), lower}},
		},
		"a borrower gets what there is when nothing more is coming": {
			pods:     []podLimits{settledPod("a", owed), settledPod("b", res(300, 256))},
			balances: map[string]pool.Balance{"a": borrowed(res(300, 0)), "b": lent(res(200, 0))},
			want:     []resize{{"a", res(700, 256), raise}},
		},
		"no limit of the user's: that resource is left alone": {
			pods: []podLimits{
				{name: "a", owed: res(0, 256), most: res(0, 1024), asked: res(0, 256), possible: res(0, 256)},
				settledPod("b", owed),
			},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "b": lent(res(0, 64))},
			recorded: true,
			want:     []resize{{"a", res(0, 320), raise}},
		},
		"a ceiling is given at once, whatever is on loan and whoever has it": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.ceiling, p.awaited, p.low = 1800, true, 500; patient(p) }),
				settledPod("b", res(900, 256))},
			balances: map[string]pool.Balance{"a": lent(res(200, 0)), "b": borrowed(res(400, 0))},
			recorded: true,
			want:     []resize{{"a", res(1800, 256), raise}},
		},
		"a ceiling and memory are two patches": {
			pods:     []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.ceiling = 1800 })},
			balances: map[string]pool.Balance{"a": borrowed(res(0, 64))},
			recorded: true,
			want:     []resize{{"a", res(500, 320), raise}},
		},
		"but for what the kubelet does not know of": {
			pods: []podLimits{with(settledPod("a", owed), func(p *podLimits) { p.ceiling, p.unrecorded = 1800, 320*mi })},
			want: []resize{{"a", res(1800, 320), raise}},
		},
		"and for what is the pod's own": {
			pods:     []podLimits{with(settledPod("a", res(300, 256)), func(p *podLimits) { p.ceiling = 1800 })},
			balances: map[string]pool.Balance{"a": borrowed(res(0, 64))},
			recorded: true,
			want:     []resize{{"a", res(1800, 320), restore}},
		},
		"a balance of a pod that is not here changes nothing": {
			pods:     []podLimits{settledPod("a", owed)},
			balances: map[string]pool.Balance{"a": borrowed(res(200, 64)), "elsewhere": lent(res(200, 64))},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, waiting := plan(tc.pods, tc.balances, tc.recorded)
			if diff := cmp.Diff(tc.waiting, waiting); diff != "" {
				t.Errorf("waiting (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(resize{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// nodeModel is a node in which resizes take effect late and in any order.
type nodeModel struct {
	pods     []podLimits
	force    map[string]api.Resources // in force
	balances map[string]pool.Balance
	recorded bool
	patient  bool // and without an agent all the time
}

func drawNode(t *rapid.T) *nodeModel {
	n := &nodeModel{force: map[string]api.Resources{}, balances: map[string]pool.Balance{}, patient: rapid.Bool().Draw(t, "patient")}
	n.recorded = !n.patient && rapid.Bool().Draw(t, "recorded")
	for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
		owed := res(rapid.Int64Range(1, 10).Draw(t, "owed cpu")*100, rapid.Int64Range(1, 8).Draw(t, "owed memory")*64)
		p := podLimits{name: fmt.Sprint("pod", i), owed: owed, least: api.Resources{CPUMilli: 100, MemoryBytes: owed.MemoryBytes}, most: unbounded, asked: owed, possible: owed,
			low: owed.CPUMilli, granted: owed.CPUMilli, patient: n.patient}
		n.pods = append(n.pods, p)
		n.force[p.name] = owed
	}
	return n
}

// drawBalances is any state a pool may be in: what is borrowed was lent.
func (n *nodeModel) drawBalances(t *rapid.T) {
	clear(n.balances)
	var pot api.Resources
	for _, p := range n.pods {
		if rapid.Bool().Draw(t, "lends") {
			spare := p.owed.Sub(res(100, 64))
			lent := api.Resources{
				CPUMilli:    rapid.Int64Range(0, spare.CPUMilli/100).Draw(t, "lent cpu") * 100,
				MemoryBytes: rapid.Int64Range(0, spare.MemoryBytes/(64*mi)).Draw(t, "lent memory") * 64 * mi,
			}
			n.balances[p.name] = pool.Balance{Lent: lent}
			pot = pot.Add(lent)
		}
	}
	for _, p := range n.pods {
		if _, lends := n.balances[p.name]; lends {
			continue
		}
		part := api.Resources{
			CPUMilli:    rapid.Int64Range(0, pot.CPUMilli/100).Draw(t, "borrowed cpu") * 100,
			MemoryBytes: rapid.Int64Range(0, pot.MemoryBytes/(64*mi)).Draw(t, "borrowed memory") * 64 * mi,
		}
		n.balances[p.name] = pool.Balance{Borrowed: part}
		pot = pot.Sub(part)
	}
}

func (n *nodeModel) issue(t *rapid.T, resizes []resize) {
	for _, r := range resizes {
		for i := range n.pods {
			if p := &n.pods[i]; p.name == r.pod {
				// The patch may be lost; then nothing about the pod has changed.
				if rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
					continue
				}
				p.asked = r.limits
				p.possible = p.possible.Max(r.limits)
			}
		}
	}
}

// settle brings what pod i was asked for in force, as the kubelet does.
func (n *nodeModel) settle(i int) {
	p := &n.pods[i]
	n.force[p.name] = p.asked
	p.possible, p.low, p.granted = p.asked, p.asked.CPUMilli, p.asked.CPUMilli
}

// excess is by how much milli CPU what is in force is above what all users were
// promised.
func (n *nodeModel) excess() int64 {
	var r int64
	for _, p := range n.pods {
		r += n.force[p.name].CPUMilli - p.owed.CPUMilli
	}
	return r
}

// toGiveBack is what milli CPU borrowers hold above what their balance gives them.
func (n *nodeModel) toGiveBack() int64 {
	var r int64
	for _, p := range n.pods {
		b := n.balances[p.name]
		r += max(0, n.force[p.name].CPUMilli-p.owed.CPUMilli-b.Borrowed.CPUMilli+b.Lent.CPUMilli)
	}
	return r
}

// Invariant 1, conservation: the CPU limits in force never add up to more than the
// users were promised, except by what borrowers have yet to give back to donors
// that were restored because they had no patience or the agent has restored them; and
// nothing is raised into that exception. The memory limits
// in the specs are what a transfer leaves them as; memory is conserved by the agent.
func TestPlanConserves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				n.drawBalances(t)
			case 1, 2:
				resizes, _ := plan(n.pods, n.balances, n.recorded)
				checkResizes(t, n, resizes)
				n.issue(t, resizes)
			case 3:
				n.settle(rapid.IntRange(0, len(n.pods)-1).Draw(t, "settled"))
			case 4:
				n.recorded = !n.patient && rapid.Bool().Draw(t, "recorded")
			}
			if excess := n.excess(); n.patient && excess > int64(len(n.pods))*nudgeMilli {
				t.Fatalf("CPU limits in force exceed the user allocations by %dm", excess)
			}
			if excess, back := max(0, n.excess()), n.toGiveBack(); excess > back {
				t.Fatalf("CPU limits in force exceed the user allocations by %dm; borrowers have only %dm to give back", excess, back)
			}
		}
	})
}

// checkResizes checks what must be true of every plan, whatever the node's state.
func checkResizes(t *rapid.T, n *nodeModel, resizes []resize) {
	t.Helper()
	asked := map[string]api.Resources{}
	for _, p := range n.pods {
		asked[p.name] = p.asked
	}
	var last direction
	for _, r := range resizes {
		if r.direction < last {
			t.Errorf("%v of %s comes after a %v", r.direction, r.pod, last)
		}
		last = r.direction
		asked[r.pod] = r.limits
	}
	var most, owed int64 // milli CPU
	for _, p := range n.pods {
		b := n.balances[p.name]
		due := p.owed.Add(b.Borrowed).Sub(b.Lent).Max(p.least)
		if whole := due.Min(p.owed); !n.patient && asked[p.name].Min(whole) != whole {
			t.Errorf("pod %s is left at %v though it is owed %v", p.name, asked[p.name], whole)
		}
		if asked[p.name].Max(p.least) != asked[p.name] {
			t.Errorf("pod %s is asked for %v, below its request %v", p.name, asked[p.name], p.least)
		}
		if memory := asked[p.name].MemoryBytes; !n.recorded && memory > max(p.asked.MemoryBytes, p.owed.MemoryBytes) {
			t.Errorf("memory of %s is raised to %d though no agent took it from anybody", p.name, memory)
		}
		most += max(p.possible.CPUMilli, asked[p.name].CPUMilli)
		owed += p.owed.CPUMilli
	}
	for _, p := range n.pods {
		now, old := asked[p.name].CPUMilli, max(p.possible.CPUMilli, p.owed.CPUMilli)
		if now > old && most > owed {
			t.Errorf("CPU of %s is raised to %dm while the node may reach %dm of %dm", p.name, now, most, owed)
		}
	}
}

// With a pool that stands still, every pod reaches what its balance says, except that
// no memory limit is lowered below the user allocation, nor raised without an agent;
// and then nothing is touched any more.
func TestPlanConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		for range rapid.IntRange(1, 3).Draw(t, "pools") {
			n.drawBalances(t)
			for range rapid.IntRange(0, 2).Draw(t, "rounds before the pool changes") {
				resizes, _ := plan(n.pods, n.balances, n.recorded)
				n.issue(t, resizes)
			}
		}
		for range 4 {
			resizes, _ := plan(n.pods, n.balances, n.recorded)
			for _, r := range resizes {
				for i := range n.pods {
					if n.pods[i].name == r.pod {
						n.pods[i].asked = r.limits
					}
				}
			}
			for i := range n.pods {
				n.settle(i)
			}
		}
		if resizes, _ := plan(n.pods, n.balances, n.recorded); len(resizes) > 0 {
			t.Fatalf("still %v", resizes)
		}
		for _, p := range n.pods {
			b := n.balances[p.name]
			want := p.owed.Add(b.Borrowed).Sub(b.Lent)
			want.MemoryBytes = max(want.MemoryBytes, p.owed.MemoryBytes)
			if !n.recorded {
				want.MemoryBytes = p.owed.MemoryBytes
			}
			if p.asked != want {
				t.Errorf("pod %s is at %v, want %v", p.name, p.asked, want)
			}
		}
	})
}

// Invariant 1 beside pods with a ceiling: what these have is no reason to give those whose
// owners lend more than they were promised, nor to keep their own from them.
func TestPlanConservesBesideCeilings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		beside := map[string]podLimits{}
		for i := range rapid.IntRange(1, 3).Draw(t, "with a ceiling") {
			p := settledPod(fmt.Sprint("node", i), res(rapid.Int64Range(1, 40).Draw(t, "in force")*100, 256))
			p.ceiling = rapid.Int64Range(5, 40).Draw(t, "ceiling") * 100
			p.least, p.patient = p.owed, n.patient
			if rapid.Bool().Draw(t, "refused") {
				p.most.CPUMilli = p.owed.CPUMilli
			}
			beside[p.name] = p
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				n.drawBalances(t)
				for name := range beside { // of a loan that began under the other source
					n.balances[name] = pool.Balance{Lent: res(rapid.Int64Range(0, 4).Draw(t, "stale")*100, 0)}
				}
			case 1, 2:
				alone, waiting := plan(n.pods, n.balances, n.recorded)
				all := slices.Clone(n.pods)
				for _, p := range beside {
					all = append(all, p)
				}
				resizes, waitingBeside := plan(all, n.balances, n.recorded)
				var lends []resize
				for _, r := range resizes {
					p, ok := beside[r.pod]
					if !ok {
						lends = append(lends, r)
						continue
					}
					if cpu := r.limits.CPUMilli; cpu < p.owed.CPUMilli || cpu > p.ceiling {
						t.Fatalf("CPU of %s is asked for at %dm, want it between %dm and its ceiling of %dm", r.pod, cpu, p.owed.CPUMilli, p.ceiling)
					}
					p.asked = r.limits
					beside[r.pod] = p
				}
				if diff := cmp.Diff(alone, lends, cmp.AllowUnexported(resize{})) + cmp.Diff(waiting, waitingBeside); diff != "" {
					t.Fatalf("the plan for those whose owners lend, alone and beside the others:\n%s", diff)
				}
				n.issue(t, lends)
			case 3:
				n.settle(rapid.IntRange(0, len(n.pods)-1).Draw(t, "settled"))
			case 4:
				n.recorded = !n.patient && rapid.Bool().Draw(t, "recorded")
			}
		}
	})
}
