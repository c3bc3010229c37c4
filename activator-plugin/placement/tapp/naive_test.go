package tapp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api/v1alpha1"
)

// world is all that a policy can ask.
type world struct {
	nodes      []Node
	zone       string
	candidates []placement.Candidate
	cpu        map[string]float64 // by node
	inFlight   map[string]int
	forwarded  bool
	reachable  map[string]bool // by zone, whether an activator there can be reached
}

func (w *world) load(_ *placement.Query, c *placement.Candidate) (float64, int) {
	return w.cpu[c.Node], max(w.inFlight[c.Node], c.InFlight)
}

func (w *world) options() Options { return Options{Zone: w.zone, Policy: fakePolicy, Load: w.load} }

// fakePolicy returns a policy for each strategy that chooses one pod in its own way.
func fakePolicy(s v1alpha1.Strategy) placement.Policy {
	return func(_ *placement.Query, candidates []placement.Candidate) int {
		best, score := 0, uint32(0)
		for i := range candidates {
			h := fnv.New32a()
			fmt.Fprint(h, s, candidates[i].Dest)
			if h.Sum32() > score {
				best, score = i, h.Sum32()
			}
		}
		return best
	}
}

// answer is an answer that a program may give.
type answer struct{ index, block int }

// naive interprets a policy as the paper describes it, step by step and from the policy's own words. It returns every
// result that chance may lead to.
type naive struct {
	world
	spec *v1alpha1.PlacementPolicySpec
}

func (n *naive) answers() map[answer]bool {
	all, own := map[answer]bool{}, map[answer]bool{}
	for number := range n.spec.Blocks {
		b := &n.spec.Blocks[number]
		chosen := n.inBlock(b)
		for _, i := range chosen {
			all[answer{i, number}] = true
			if b.Controller != nil && b.Controller.Zone == n.zone {
				own[answer{i, number}] = true
			}
		}
		if len(chosen) > 0 && cmp.Or(n.spec.Strategy, v1alpha1.BestFirst) == v1alpha1.BestFirst {
			return all
		}
	}
	switch {
	case len(all) == 0:
		all[answer{-1, None}] = true
	case n.forwarded && n.spec.Strategy == v1alpha1.Random && len(own) > 0:
		// The activator that passed it on has drawn a block of this zone.
		return own
	}
	return all
}

// routes returns the zones to which a request may be passed on before it has a slot. The empty zone means here.
func (n *naive) routes() map[string]bool {
	if n.forwarded {
		return map[string]bool{"": true}
	}
	all := map[string]bool{}
	for i := range n.spec.Blocks {
		b := &n.spec.Blocks[i]
		switch {
		case n.passesOn(b):
			all[b.Controller.Zone] = true
		case len(n.inBlock(b)) > 0:
			all[""] = true
		case len(n.candidates) == 0 && (b.Controller == nil || b.Controller.Zone == n.zone || b.Controller.TopologyTolerance != v1alpha1.ToleranceNone):
			all[""] = true
		}
		if len(all) > 0 && cmp.Or(n.spec.Strategy, v1alpha1.BestFirst) == v1alpha1.BestFirst {
			return all
		}
	}
	if len(all) == 0 {
		all[""] = true
	}
	return all
}

// passesOn says whether another activator places a block's requests.
func (n *naive) passesOn(b *v1alpha1.Block) bool {
	c := b.Controller
	return c != nil && c.Zone != n.zone && c.Outside != v1alpha1.OutsideStay && n.reachable[c.Zone]
}

// inBlock returns the candidates that a block may choose.
func (n *naive) inBlock(b *v1alpha1.Block) (chosen []int) {
	var valid []*v1alpha1.Worker
	for i := range b.Workers {
		if len(n.validIn(b, &b.Workers[i])) > 0 {
			valid = append(valid, &b.Workers[i])
		}
	}
	if len(valid) == 0 {
		return nil
	}
	switch s := cmp.Or(b.Strategy, v1alpha1.BestFirst); s {
	case v1alpha1.BestFirst:
		return n.inWorker(b, valid[0])
	case v1alpha1.Random:
		for _, w := range valid {
			chosen = append(chosen, n.inWorker(b, w)...)
		}
		return chosen
	default:
		var of []int
		for i := range n.candidates {
			if slices.ContainsFunc(valid, func(w *v1alpha1.Worker) bool { return slices.Contains(n.validIn(b, w), i) }) {
				of = append(of, i)
			}
		}
		i := n.compare(s, of)
		w := valid[slices.IndexFunc(valid, func(w *v1alpha1.Worker) bool { return slices.Contains(n.validIn(b, w), i) })]
		if w.Set != nil && w.Strategy != "" {
			return n.inWorker(b, w)
		}
		return []int{i}
	}
}

// inWorker returns the candidates that may be chosen within a worker.
func (n *naive) inWorker(b *v1alpha1.Block, w *v1alpha1.Worker) (chosen []int) {
	valid := n.validIn(b, w)
	strategy := cmp.Or(w.Strategy, v1alpha1.Platform)
	if w.Set == nil {
		strategy = v1alpha1.BestFirst // for a single node
	}
	switch strategy {
	case v1alpha1.BestFirst:
		slices.SortStableFunc(valid, func(i, j int) int {
			return cmp.Or(cmp.Compare(n.rank(i), n.rank(j)), cmp.Compare(n.candidates[i].InFlight, n.candidates[j].InFlight))
		})
		return valid[:1]
	case v1alpha1.Random:
		slices.SortStableFunc(valid, func(i, j int) int { return cmp.Compare(n.candidates[i].InFlight, n.candidates[j].InFlight) })
		seen := map[string]bool{}
		for _, i := range valid {
			if node := n.candidates[i].Node; !seen[node] {
				seen[node] = true
				chosen = append(chosen, i)
			}
		}
		return chosen
	default:
		return []int{n.compare(strategy, valid)}
	}
}

// rank orders the nodes: first those that there are, by name; then those that only the policy names, in its order; and
// then all others, about which nothing is known, as one.
func (n *naive) rank(i int) string {
	name := n.candidates[i].Node
	if slices.ContainsFunc(n.nodes, func(node Node) bool { return node.Name == name }) {
		return "1" + name
	}
	at := 0
	for _, b := range n.spec.Blocks {
		for _, w := range b.Workers {
			if w.Node == name {
				return fmt.Sprintf("2%02d", at)
			}
			at++
		}
	}
	return "3"
}

func (n *naive) compare(s v1alpha1.Strategy, of []int) int {
	var some []placement.Candidate
	for _, i := range of {
		some = append(some, n.candidates[i])
	}
	return of[fakePolicy(s)(nil, some)]
}

// validIn returns the candidates that are valid for a worker now.
func (n *naive) validIn(b *v1alpha1.Block, w *v1alpha1.Worker) (valid []int) {
	for i := range n.candidates {
		c := &n.candidates[i]
		at := slices.IndexFunc(n.nodes, func(node Node) bool { return node.Name == c.Node })
		node := Node{Name: c.Node, Reachable: true}
		if at >= 0 {
			node = n.nodes[at]
		}
		if node.Reachable && n.matches(b, w, node, at >= 0) && !n.invalid(b, w, node, c) {
			valid = append(valid, i)
		}
	}
	return valid
}

func (n *naive) matches(b *v1alpha1.Block, w *v1alpha1.Worker, node Node, there bool) bool {
	if c := b.Controller; c != nil && c.Zone != n.zone {
		switch {
		case c.TopologyTolerance == v1alpha1.ToleranceNone:
			return false
		case c.TopologyTolerance == v1alpha1.ToleranceSame && node.Labels[corev1.LabelTopologyZone] != c.Zone:
			return false
		}
	}
	if w.Set == nil {
		return w.Node == node.Name
	}
	if !there {
		return len(w.Set.MatchLabels)+len(w.Set.MatchExpressions) == 0
	}
	for key, value := range w.Set.MatchLabels {
		if is, has := node.Labels[key]; !has || is != string(value) {
			return false
		}
	}
	for _, e := range w.Set.MatchExpressions {
		is, has := node.Labels[e.Key]
		ok := map[metav1.LabelSelectorOperator]bool{
			metav1.LabelSelectorOpIn:           has && slices.Contains(e.Values, is),
			metav1.LabelSelectorOpNotIn:        !has || !slices.Contains(e.Values, is),
			metav1.LabelSelectorOpExists:       has,
			metav1.LabelSelectorOpDoesNotExist: !has,
		}[e.Operator]
		if !ok {
			return false
		}
	}
	return true
}

func (n *naive) invalid(b *v1alpha1.Block, w *v1alpha1.Worker, node Node, c *placement.Candidate) bool {
	i := w.Invalidate
	if i == nil {
		i = b.Invalidate
	}
	if i == nil {
		i = &v1alpha1.Invalidate{Overload: true}
	}
	cpu, inFlight := n.load(nil, c)
	return i.Overload && node.Pressed ||
		i.CapacityUsedPercent != nil && cpu*100 >= float64(*i.CapacityUsedPercent) ||
		i.MaxConcurrentInvocations != nil && inFlight >= int(*i.MaxConcurrentInvocations)
}

var (
	nodeNames = []string{"a", "b", "c", "d", "e", "f"}
	zones     = []string{"x", "y"}
)

func drawWorld(t *rapid.T) *world {
	w := &world{cpu: map[string]float64{}, inFlight: map[string]int{}, zone: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone of the activator")}
	for _, name := range nodeNames {
		w.cpu[name] = float64(rapid.IntRange(0, 10).Draw(t, "cpu")) / 10
		w.inFlight[name] = rapid.IntRange(0, 4).Draw(t, "in flight")
		if rapid.IntRange(0, 9).Draw(t, "is there") == 0 {
			continue
		}
		n := Node{Name: name, Labels: map[string]string{}, Reachable: rapid.IntRange(0, 7).Draw(t, "reachable") > 0, Pressed: rapid.IntRange(0, 5).Draw(t, "pressed") == 0}
		for key, values := range map[string][]string{corev1.LabelTopologyZone: append(zones, ""), "disk": {"ssd", "hdd", ""}} {
			if value := rapid.SampledFrom(values).Draw(t, key); value != "" {
				n.Labels[key] = value
			}
		}
		w.nodes = append(w.nodes, n)
	}
	w.forwarded = rapid.IntRange(0, 3).Draw(t, "forwarded") == 0
	w.reachable = map[string]bool{}
	for _, zone := range zones {
		w.reachable[zone] = rapid.Bool().Draw(t, "reachable zone")
	}
	ids := rapid.Bool().Draw(t, "nodes have IDs") // without IDs, nodes are looked up by name
	for i := range rapid.IntRange(1, 8).Draw(t, "candidates") {
		c := placement.NewCandidate(&placement.Target{Dest: fmt.Sprintf("10.0.0.%d:8012", i), Node: rapid.SampledFrom(nodeNames).Draw(t, "node")}, nil)
		c.InFlight = rapid.IntRange(0, 2).Draw(t, "in the pod")
		if !ids {
			c.NodeID = 0
		}
		w.candidates = append(w.candidates, c)
	}
	return w
}

func drawSpec(t *rapid.T) *v1alpha1.PlacementPolicySpec {
	spec := &v1alpha1.PlacementPolicySpec{Strategy: rapid.SampledFrom(append(ofBlocks, "")).Draw(t, "strategy of blocks")}
	for range rapid.IntRange(1, 3).Draw(t, "blocks") {
		b := v1alpha1.Block{Strategy: drawStrategy(t), Invalidate: drawInvalidate(t)}
		if rapid.IntRange(0, 3).Draw(t, "controller") < 2 {
			b.Controller = &v1alpha1.Controller{Zone: rapid.SampledFrom(zones).Draw(t, "zone"), TopologyTolerance: rapid.SampledFrom(append(tolerances, "")).Draw(t, "tolerance"), Outside: rapid.SampledFrom(append(outsides, "")).Draw(t, "outside")}
		}
		for range rapid.IntRange(1, 3).Draw(t, "workers") {
			w := v1alpha1.Worker{Invalidate: drawInvalidate(t)}
			if rapid.Bool().Draw(t, "is a set") {
				w.Set, w.Strategy = drawSet(t), drawStrategy(t)
			} else {
				w.Node = rapid.SampledFrom(nodeNames).Draw(t, "named")
			}
			b.Workers = append(b.Workers, w)
		}
		spec.Blocks = append(spec.Blocks, b)
	}
	return spec
}

func drawStrategy(t *rapid.T) v1alpha1.Strategy {
	return rapid.SampledFrom(append(strategies, "", v1alpha1.BestFirst, v1alpha1.Random)).Draw(t, "strategy")
}

func drawSet(t *rapid.T) *v1alpha1.NodeSet {
	set := &v1alpha1.NodeSet{}
	if rapid.Bool().Draw(t, "has labels") {
		set.MatchLabels = map[string]v1alpha1.LabelValue{"disk": rapid.SampledFrom([]v1alpha1.LabelValue{"ssd", "hdd"}).Draw(t, "disk")}
	}
	if rapid.IntRange(0, 2).Draw(t, "has requirements") == 0 {
		e := v1alpha1.NodeRequirement{Key: corev1.LabelTopologyZone, Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
		}).Draw(t, "operator")}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = zones[:rapid.IntRange(1, 2).Draw(t, "values")]
		}
		set.MatchExpressions = append(set.MatchExpressions, e)
	}
	return set
}

func drawInvalidate(t *rapid.T) *v1alpha1.Invalidate {
	switch rapid.IntRange(0, 5).Draw(t, "invalidate") {
	case 0:
		return &v1alpha1.Invalidate{Overload: true}
	case 1:
		return &v1alpha1.Invalidate{CapacityUsedPercent: ptr.To(int32(rapid.IntRange(1, 10).Draw(t, "percent") * 10))}
	case 2:
		return &v1alpha1.Invalidate{MaxConcurrentInvocations: ptr.To(int32(rapid.IntRange(1, 5).Draw(t, "most")))}
	case 3:
		return &v1alpha1.Invalidate{CapacityUsedPercent: ptr.To(int32(50)), MaxConcurrentInvocations: ptr.To(int32(3)), Overload: rapid.Bool().Draw(t, "overload")}
	default:
		return nil
	}
}

var of = types.NamespacedName{Namespace: "shop", Name: "cart-00001"}

// programs is how many policies are compared in all, each in its own world.
const programs = 10_000

// A program does what the paper says where that leaves nothing to chance. Otherwise it does one of the things that the
// paper allows.
func TestProgramsAreWhatTheirPoliciesSay(t *testing.T) {
	compared, placed, chances := 0, 0, 0
	for compared < programs && !t.Failed() {
		rapid.Check(t, func(t *rapid.T) {
			w, spec := drawWorld(t), drawSpec(t)
			p, err := Compile("tag", spec, NewNodes(w.nodes), w.options())
			if err != nil {
				t.Fatal(err)
			}
			want := (&naive{*w, spec}).answers()
			q := &placement.Query{Revision: of, Forwarded: w.forwarded, Rand: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "chance"), 0))}
			var got answer
			for range 4 {
				got.index, got.block = p.Place(q, w.candidates)
				if !want[got] {
					t.Fatalf("got %v, want one of %v", got, want)
				}
			}
			compared++
			if got.index >= 0 {
				placed++
			}
			if len(want) > 1 {
				chances++
			}
		})
	}
	if placed < compared/4 || placed == compared || chances < compared/20 {
		t.Errorf("of %d, %d had a place and %d were left to chance: that does not test much", compared, placed, chances)
	}
}

// A program routes a request as the paper says. If the request stays here, the same program does not place it by a
// block that another activator takes care of.
func TestRoutesAreWhatTheirPoliciesSay(t *testing.T) {
	compared, passed, chances := 0, 0, 0
	for compared < programs && !t.Failed() {
		rapid.Check(t, func(t *rapid.T) {
			w, spec := drawWorld(t), drawSpec(t)
			if rapid.IntRange(0, 5).Draw(t, "has candidates") == 0 {
				w.candidates = nil
			}
			p, err := Compile("tag", spec, NewNodes(w.nodes), w.options())
			if err != nil {
				t.Fatal(err)
			}
			n := &naive{*w, spec}
			want := n.routes()
			for range 4 {
				q := &placement.Query{Revision: of, Forwarded: w.forwarded, Order: rapid.Uint64Min(1).Draw(t, "order")}
				zone, forward := p.Route(q, func() []placement.Candidate { return w.candidates }, func(zone string) bool { return w.reachable[zone] })
				if !want[zone] || forward != (zone != "") {
					t.Fatalf("routed to %q (%t), want one of %v", zone, forward, want)
				}
				if forward {
					passed++
					continue
				}
				if i, block := p.Place(q, w.candidates); i >= 0 && !w.forwarded && n.passesOn(&spec.Blocks[block]) {
					t.Fatalf("block %d, which is another activator's, has placed what was routed here", block)
				}
			}
			compared++
			if len(want) > 1 {
				chances++
			}
		})
	}
	if passed < compared/10 || chances < compared/50 {
		t.Errorf("of %d, %d times a request was passed on, and %d were left to chance: that does not test much", compared, passed, chances)
	}
}
