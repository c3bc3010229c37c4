package tapp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/api/v1alpha1"
	"libra.dev/libra/pkg/pool"
)

func specIn(t testing.TB, text string) *v1alpha1.PlacementPolicySpec {
	t.Helper()
	var spec v1alpha1.PlacementPolicySpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return &spec
}

func compiled(t testing.TB, text string, nodes []Node, o Options) *Program {
	t.Helper()
	p, err := Compile("tag", specIn(t, text), NewNodes(nodes), o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// manyNodes returns n nodes that are ready, each in one of ten zones.
func manyNodes(n int) (nodes []Node) {
	for i := range n {
		nodes = append(nodes, Node{Name: fmt.Sprintf("ip-10-0-%d-%d.eu-west-1.compute.internal", i/256, i%256), Reachable: true,
			Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", (i+i/10)%10)}})
	}
	return nodes
}

func podsOn(nodes []Node, each int) (candidates []placement.Candidate) {
	for i, n := range nodes {
		for j := range each {
			candidates = append(candidates, placement.NewCandidate(&placement.Target{Dest: fmt.Sprintf("10.%d.%d.%d:8012", j, i/256, i%256), Node: n.Name}, nil))
		}
	}
	return candidates
}

// Chance is fair among workers and among the nodes of a set, however many pods each has.
func TestRandomIsFair(t *testing.T) {
	nodes := manyNodes(4)
	// The first node has three pods, and each other one has one.
	candidates := append(podsOn(nodes, 1), podsOn(nodes[:1], 2)...)
	const draws = 40_000
	for name, tc := range map[string]struct {
		spec  string
		share map[string]float64 // by node
	}{
		"nodes of a set": {"{blocks: [{workers: [{set: {}, strategy: random}]}]}",
			map[string]float64{nodes[0].Name: .25, nodes[1].Name: .25, nodes[2].Name: .25, nodes[3].Name: .25}},
		"workers": {fmt.Sprintf("{blocks: [{workers: [{node: %s}, {set: {matchLabels: {topology.kubernetes.io/zone: zone-1}}}, {node: none}], strategy: random}]}", nodes[0].Name),
			map[string]float64{nodes[0].Name: .5, nodes[1].Name: .5}},
		"blocks": {fmt.Sprintf("{strategy: random, blocks: [{workers: [{node: %s}]}, {workers: [{node: none}]}, {workers: [{node: %s}]}]}", nodes[2].Name, nodes[3].Name),
			map[string]float64{nodes[2].Name: .5, nodes[3].Name: .5}},
	} {
		p := compiled(t, tc.spec, nodes, Options{Policy: fakePolicy})
		q := &placement.Query{Revision: of, Rand: rand.New(rand.NewPCG(1, 2))}
		came := map[string]float64{}
		for range draws {
			i, _ := p.Place(q, candidates)
			came[candidates[i].Node]++
		}
		for _, n := range nodes {
			// The tolerance is six standard deviations of a share.
			if got, want := came[n.Name]/draws, tc.share[n.Name]; got < want-.015 || got > want+.015 {
				t.Errorf("%s: %s has %.3f of the requests, want %.3f", name, n.Name, got, want)
			}
		}
	}
}

// With platform, each function has its own order of the blocks, and keeps to it.
func TestTheBlocksOfAFunctionAreInAnOrderOfItsOwn(t *testing.T) {
	nodes := manyNodes(3)
	p := compiled(t, fmt.Sprintf("{strategy: platform, blocks: [{workers: [{node: %s}]}, {workers: [{node: %s}]}, {workers: [{node: %s}]}]}", nodes[0].Name, nodes[1].Name, nodes[2].Name), nodes, Options{Policy: fakePolicy})
	candidates := podsOn(nodes, 1)
	first := map[int]int{}
	for i := range 300 {
		q := &placement.Query{Revision: types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("f%d", i)}}
		_, block := p.Place(q, candidates)
		first[block]++
		for range 3 {
			if _, again := p.Place(q, candidates); again != block {
				t.Fatalf("function %d comes by block %d and then by %d", i, block, again)
			}
		}
		// Without the node of its first block, it goes to another block.
		rest := slices.DeleteFunc(slices.Clone(candidates), func(c placement.Candidate) bool { return c.Node == nodes[block].Name })
		if _, other := p.Place(q, rest); other == block || other == None {
			t.Fatalf("function %d comes by block %d without its node", i, other)
		}
	}
	for block := range 3 {
		if first[block] < 60 {
			t.Errorf("%d of 300 functions begin with block %d", first[block], block)
		}
	}
}

// Policies are asked only about the valid candidates, and Knative's stays first.
func TestPoliciesAreAskedAboutValidCandidates(t *testing.T) {
	nodes := manyNodes(4)
	var asked [][]string
	spy := func(v1alpha1.Strategy) placement.Policy {
		return func(_ *placement.Query, candidates []placement.Candidate) int {
			var names []string
			for _, c := range candidates {
				names = append(names, c.Node)
			}
			asked = append(asked, names)
			return len(candidates) - 1
		}
	}
	load := func(_ *placement.Query, c *placement.Candidate) (float64, int) {
		return map[string]float64{nodes[2].Name: .9}[c.Node], 0
	}
	p := compiled(t, "{blocks: [{workers: [{set: {}, strategy: jsq}], invalidate: {capacityUsedPercent: 90}}]}", nodes, Options{Policy: spy, Load: load})
	candidates := podsOn([]Node{nodes[3], nodes[2], nodes[0]}, 1)
	if i, block := p.Place(&placement.Query{Revision: of}, candidates); i != 2 || block != 0 {
		t.Errorf("got %d by %d, want the last by 0", i, block)
	}
	if want := []string{nodes[3].Name, nodes[0].Name}; len(asked) != 1 || !slices.Equal(asked[0], want) {
		t.Errorf("asked about %v, want %v once", asked, want)
	}
}

func TestUnmatchedBlocks(t *testing.T) {
	nodes := []Node{{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: "east"}}} // not even ready
	for spec, want := range map[string][]int32{
		"{blocks: [{workers: [{node: a}]}, {workers: [{node: b}]}]}":                                                                                                       {1},
		"{blocks: [{workers: [{node: b}, {set: {}}]}]}":                                                                                                                    nil,
		"{blocks: [{workers: [{set: {matchLabels: {topology.kubernetes.io/zone: west}}}]}, {workers: [{node: c}]}]}":                                                       {0, 1},
		"{blocks: [{controller: {zone: west, topologyTolerance: none}, workers: [{set: {}}]}]}":                                                                            {0},
		"{blocks: [{controller: {zone: east, topologyTolerance: none}, workers: [{set: {}}]}, {controller: {zone: east, topologyTolerance: same}, workers: [{node: b}]}]}": {1},
	} {
		for _, zone := range []string{"", "east", "west"} {
			if got := compiled(t, spec, nodes, Options{Policy: fakePolicy, Zone: zone}).Unmatched(); !slices.Equal(got, want) {
				t.Errorf("%s in zone %q: blocks %v match no node, want %v", spec, zone, got, want)
			}
		}
	}
}

// The picture hears about a request only after it has been placed. This activator knows at once about its own requests:
// those of all revisions and all pods on the node.
func TestConcurrentInvocationsCountAtOnce(t *testing.T) {
	nodes := manyNodes(1)
	p := compiled(t, fmt.Sprintf("{followup: fail, blocks: [{workers: [{node: %s}], invalidate: {maxConcurrentInvocations: 2}}]}", nodes[0].Name), nodes, Options{})
	slots := placement.NewSlots(nil, nil)
	other := types.NamespacedName{Namespace: of.Namespace, Name: "other"}
	dest := func(i int) string { return fmt.Sprintf("10.0.0.%d:8012", i) }
	for i := range 4 {
		revision := of
		if i == 3 {
			revision = other
		}
		slots.SetPod(revision, placement.Pod{Name: fmt.Sprint("shop/", i), Node: nodes[0].Name, IPs: []string{fmt.Sprint("10.0.0.", i)}, Ready: true})
	}
	take := func(revision types.NamespacedName, i int) placement.Choice {
		return slots.Of(revision, 1).Take(dest(i), placement.Ask{Program: p})
	}
	first, second := take(of, 0), take(other, 3)
	if first.Outcome == placement.Refused || second.Outcome == placement.Refused {
		t.Fatalf("the first two are %s and %s", first.Outcome, second.Outcome)
	}
	if c := take(of, 1); c.Outcome != placement.Refused {
		t.Errorf("the third goes to %s, %s", c.Dest, c.Outcome)
	}
	second.Release()
	if c := take(of, 1); c.Outcome == placement.Refused {
		t.Error("it is refused when another has ended")
	}
}

// A request is counted once, however many candidates are asked about for it.
func TestARequestIsCountedOnce(t *testing.T) {
	nodes := manyNodes(3)
	for name, tc := range map[string]struct {
		node            string
		placed, refused uint64
	}{
		"placed with another activator's pod": {nodes[1].Name, 1, 0},
		"refused":                             {nodes[2].Name, 0, 1},
	} {
		e := &enforced{Program: compiled(t, fmt.Sprintf("{followup: fail, blocks: [{workers: [{node: %s}]}]}", tc.node), nodes, Options{}), counts: &counts{}}
		slots := placement.NewSlots(nil, nil)
		slots.SetActivators(of, 0, 2)
		// The first and the third pod are this activator's.
		for i, at := range []int{0, 1, 1} {
			slots.SetPod(of, placement.Pod{Name: fmt.Sprint("shop/", i), Node: nodes[at].Name, IPs: []string{fmt.Sprint("10.0.0.", i)}, Ready: true})
		}
		pods := slots.Of(of, 1)
		pods.Take("10.0.0.2:8012", placement.Ask{}) // this leaves the activator only the first
		pods.Take("10.0.0.0:8012", placement.Ask{Program: e})
		if placed, refused := e.counts.placed[0].Load(), e.counts.refused.Load(); placed != tc.placed || refused != tc.refused {
			t.Errorf("%s: %d are counted as placed and %d as refused, want %d and %d", name, placed, refused, tc.placed, tc.refused)
		}
	}
}

// lends is a Redis that tells about nodes, each of which lends one CPU.
type lends []Node

func (l lends) ReadProfiles(context.Context, pool.Moments) ([]pool.Changes, error) {
	changes := pool.Changes{Now: time.Now()}
	for _, n := range l {
		changes.Profiles = append(changes.Profiles, pool.Profile{
			Node: n.Name, Heard: changes.Now, Open: true,
			Domains: map[string]pool.DomainProfile{of.Namespace: {Lends: []pool.Step{{Volume: api.Resources{CPUMilli: 1000}}}}},
		})
	}
	return []pool.Changes{changes}, nil
}

// A request's demand is debited from one node only, even if a block compares what nodes lend and then the set that it
// has chosen does so again.
func TestADemandIsTakenOffOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := manyNodes(4)
		picture, err := placement.NewPicture(placement.PictureOptions{
			Profiles: lends(nodes), Clock: clock.RealClock{}, Logger: zap.NewNop().Sugar(), MeterProvider: noop.NewMeterProvider(),
		})
		if err != nil {
			t.Fatal(err)
		}
		slots, views := placement.NewSlots(picture, nil), []*placement.View{}
		for i, n := range nodes {
			slots.SetPod(of, placement.Pod{Name: fmt.Sprint("shop/", i), Node: n.Name, IPs: []string{fmt.Sprint("10.0.0.", i)}, Ready: true})
			views = append(views, picture.View(n.Name, of.Namespace))
		}
		ctx, cancel := context.WithCancel(t.Context())
		go picture.Run(ctx)
		synctest.Wait()
		cancel() // the picture hears nothing more
		synctest.Wait()

		half := "{set: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [%s]}]}, strategy: coverage}"
		p := compiled(t, fmt.Sprintf("{blocks: [{strategy: coverage, workers: ["+half+", "+half+"]}]}", "zone-0, zone-1", "zone-2, zone-3"), nodes, Options{})
		demand := placement.Demand{Want: api.Resources{CPUMilli: 1000}, Duration: time.Second}
		c := slots.Of(of, 1).Take("10.0.0.1:8012", placement.Ask{Program: p, Demand: demand, Now: time.Now()})
		if !c.Debited || c.PromisedCPUMilli != 1000 {
			t.Errorf("%dm are promised (debited: %t), want all of them", c.PromisedCPUMilli, c.Debited)
		}
		for i, v := range views {
			covered, known := v.Coverage("", demand, time.Now())
			if isChosen := nodes[i].Name == c.Node; !known || isChosen == (covered == 1) {
				t.Errorf("%s covers %v then (known: %t); the request is on %s", nodes[i].Name, covered, known, c.Node)
			}
		}
	})
}

// What is wrong with a policy is kept, logged and written to its status, and the policy's author may be nobody's friend.
func TestRefusalsAreShort(t *testing.T) {
	values := func(of string, count int) string {
		all := make([]string, count)
		for i := range all {
			all[i] = fmt.Sprintf("%q", fmt.Sprint(of, i))
		}
		return strings.Join(all, ", ")
	}
	set := "{set: {matchExpressions: [{key: a, operator: In, values: [%s]}]}}"
	for name, tc := range map[string]struct{ spec, want string }{
		"many mistakes": {fmt.Sprintf("{blocks: [{workers: ["+set+"]}]}", values("a b", 64)), "and 54 more mistakes"},
		"many values": {fmt.Sprintf("{blocks: [{workers: [%s]}]}", strings.Repeat(fmt.Sprintf(set, values("a b", 64))+", ", 16)+fmt.Sprintf(set, values("a", 1))),
			"want at most 1024"},
		"a long value": {"{blocks: [{workers: [{set: {matchLabels: {a: " + strings.Repeat("b", 1<<20) + "}}}]}]}", "matchLabels[a]"},
		"a long key":   {"{blocks: [{workers: [{set: {matchLabels: {? " + strings.Repeat("b", 1<<20) + " : a}}}]}]}", "matchLabels[b"},
	} {
		_, err := Compile("tag", specIn(t, tc.spec), NewNodes(nil), Options{})
		if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > mostText {
			t.Errorf("%s: %.4096v, want at most %d bytes that say %q", name, err, mostText, tc.want)
		}
	}
}

// Whoever writes policies can name as many nodes as they like. IDs are for nodes.
func TestNodesThatAreNotThereGetNoID(t *testing.T) {
	coming := fmt.Sprint("is-coming-", rand.Uint64()) // IDs last as long as the process
	policy := "{blocks: [{workers: [{node: " + coming + "}]}]}"
	p := compiled(t, policy, []Node{{Name: "is-there"}}, Options{})
	if known := placement.KnownNodeIDs(slices.Values([]string{"is-there", coming})); len(known) != 1 || known["is-there"] == 0 {
		t.Error("a node that is there has no ID, or another has one")
	}
	c := placement.NewCandidate(&placement.Target{Node: coming}, nil)
	if p.WorkersOf(&c) != 1 {
		t.Error("a pod on a node that has come since is not found among the workers")
	}
	later := compiled(t, policy, []Node{{Name: "is-there"}, {Name: "another"}}, Options{})
	if later.WorkersOf(&c) != 1 {
		t.Error("a pod on a node that had an ID before is not found among the workers")
	}
}

// Validate names everything that is wrong, each with its field. The tests of manifests check what the definition of the
// object refuses, too.
func TestValidateNamesTheField(t *testing.T) {
	errs := Validate("tag", specIn(t, `{strategy: jsq, followup: x, blocks: [
		{workers: [{node: A}, {set: {matchLabels: {a b: c, d: e f}, matchExpressions: [{key: "", operator: In}, {key: g, operator: Gt, values: ["1"]}]}}], invalidate: {maxConcurrentInvocations: -1}}]}`))
	for _, want := range []string{
		`spec.strategy: Unsupported value: "jsq"`, `spec.followup: Unsupported value: "x"`,
		`spec.blocks[0].workers[0].node: Invalid value: "A": want the name of a node`,
		`spec.blocks[0].workers[1].set.matchLabels[a b]: Invalid value`, `spec.blocks[0].workers[1].set.matchLabels[d]: Invalid value: "e f": want a value of a node label`,
		`spec.blocks[0].workers[1].set.matchExpressions[0]: Invalid value: ""`, `spec.blocks[0].workers[1].set.matchExpressions[0].values: Required value`,
		`spec.blocks[0].workers[1].set.matchExpressions[1].operator: Unsupported value: "Gt"`,
		`spec.blocks[0].invalidate.maxConcurrentInvocations: Invalid value: -1: want 1 to 1000000`,
	} {
		if !slices.ContainsFunc(errs, func(err *field.Error) bool { return strings.Contains(err.Error(), want) }) {
			t.Errorf("got %v, want %q among it", errs.ToAggregate(), want)
		}
	}
}

func TestValidateBoundsWhatSetsName(t *testing.T) {
	requires := func(operator string, n int) string {
		set := "{set: {matchExpressions: [" + strings.Repeat("{key: a, operator: "+operator+"},", n) + "]}}"
		return "{workers: [" + strings.Repeat(set+",", 32) + "]}"
	}
	for blocks, wants := range map[string]bool{
		requires("Exists", 16) + "," + requires("DoesNotExist", 16):                                                        false,
		requires("Exists", 16) + "," + requires("DoesNotExist", 16) + ", {workers: [{set: {matchLabels: {a: b}}}]}":        true,
		"{workers: [" + strings.Repeat("{set: {matchLabels: {"+labelsOf(16)+"}}},", 64) + "{set: {matchLabels: {a: b}}}]}": true,
	} {
		errs := Validate("tag", specIn(t, "{blocks: ["+blocks+"]}"))
		const want = "spec.blocks: Invalid value: 1025: too many labels, values of labels and requirements in the sets of all workers, want at most 1024"
		if got := slices.ContainsFunc(errs, func(err *field.Error) bool { return err.Error() == want }); got != wants {
			t.Errorf("of %.80s: %v, want %q: %t", blocks, errs.ToAggregate(), want, wants)
		}
	}
}

func labelsOf(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("l%d: b", i))
	}
	return strings.Join(all, ", ")
}

// benchmarked has policies for nodes in ten zones.
var benchmarked = map[string]string{
	"a set":            "{blocks: [{workers: [{set: {matchLabels: {topology.kubernetes.io/zone: zone-3}}}]}]}",
	"all":              "{blocks: [{workers: [{set: {}}]}]}",
	"all but a zone":   "{blocks: [{workers: [{set: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: NotIn, values: [zone-0]}]}}]}]}",
	"the sixth":        "{blocks: [" + strings.Repeat("{workers: [{node: none}]},", 5) + "{workers: [{set: {matchLabels: {topology.kubernetes.io/zone: zone-3}}, strategy: bestFirst}]}]}",
	"conditions":       "{blocks: [{workers: [{set: {matchLabels: {topology.kubernetes.io/zone: zone-3}}}], invalidate: {capacityUsedPercent: 50, maxConcurrentInvocations: 100}}]}",
	"random in random": "{strategy: random, blocks: [{workers: [{set: {}, strategy: random}, {set: {}, strategy: random}], strategy: random}]}",
}

// It measures what a policy adds to a decision: the strategies that compare pods take the first here.
func BenchmarkPlace(b *testing.B) {
	stock := Options{Policy: func(v1alpha1.Strategy) placement.Policy {
		return func(*placement.Query, []placement.Candidate) int { return 0 }
	}}
	nodes := manyNodes(1000)
	for _, pods := range []int{10, 100, 1000} {
		var candidates []placement.Candidate
		for i := range pods {
			candidates = append(candidates, podsOn(nodes[i*len(nodes)/pods:][:1], 1)...)
		}
		for name, spec := range benchmarked {
			p := compiled(b, spec, nodes, stock)
			b.Run(fmt.Sprintf("%d pods/%s", pods, name), func(b *testing.B) {
				q := &placement.Query{Revision: of}
				b.ReportAllocs()
				for b.Loop() {
					p.Place(q, candidates)
				}
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	nodes := NewNodes(manyNodes(1000))
	spec := specIn(b, benchmarked["a set"])
	for b.Loop() {
		if _, err := Compile("tag", spec, nodes, Options{Policy: fakePolicy}); err != nil {
			b.Fatal(err)
		}
	}
}
