package tapp

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/activator-plugin/placement"
)

func TestOrder(t *testing.T) {
	nodes := NewNodes([]Node{{Name: "a", Reachable: true}, {Name: "b", Reachable: true}, {Name: "c", Reachable: true}})
	compile := func(of key, spec string) *enforced {
		p, err := Compile(of.name, specIn(t, spec), nodes, Options{PlacesPods: true})
		if err != nil {
			t.Fatal(err)
		}
		return &enforced{Program: p, key: of}
	}
	const none = -1 // no request goes there
	for name, tc := range map[string]struct {
		spec, byDefault string
		a, b, c         int
	}{
		"fail":                 {"{followup: fail, blocks: [{workers: [{node: a}]}, {workers: [{node: b}]}]}", "", 0, 1, none},
		"others":               {"{blocks: [{workers: [{node: a}]}, {workers: [{node: b}]}]}", "", 0, 1, 2},
		"the default":          {"{blocks: [{workers: [{node: a}]}]}", "{blocks: [{workers: [{node: a}, {node: b}]}]}", 0, 1, none},
		"fail and the default": {"{followup: fail, blocks: [{workers: [{node: a}]}]}", "{blocks: [{workers: [{node: b}]}]}", 0, none, none},
		"by chance":            {"{strategy: random, followup: fail, blocks: [{workers: [{node: a}]}, {workers: [{node: b}]}]}", "", 0, 0, none},
		"a zone":               {"{followup: fail, blocks: [{controller: {zone: z, topologyTolerance: none}, workers: [{node: b}]}]}", "", none, 0, none},
	} {
		t.Run(name, func(t *testing.T) {
			f := &force{policies: map[key]*enforced{}}
			for of, spec := range map[key]string{{"shop", "gpu"}: tc.spec, {"", "default"}: tc.byDefault} {
				if spec != "" {
					f.policies[of] = compile(of, spec)
				}
			}
			p := &Policies{}
			revision := types.NamespacedName{Namespace: "shop", Name: "cart-00001"}
			if p.OrderOf(revision, "gpu") != nil {
				t.Error("there is an order before policies are in force")
			}
			p.force.Store(f)
			o := p.OrderOf(revision, "gpu")
			if o.Policy != "shop/gpu" {
				t.Errorf("it is of %s", o.Policy)
			}
			for node, want := range map[string]int{"a": tc.a, "b": tc.b, "c": tc.c} {
				rank, goes := o.Rank(node)
				if goes != (want != none) || goes && rank != want || rank >= o.Ranks {
					t.Errorf("the rank of %s is %d of %d, %t, want %d", node, rank, o.Ranks, goes, want)
				}
			}
			if o.Refuses() != (tc.a == none || tc.b == none || tc.c == none) {
				t.Errorf("it may refuse: %t", o.Refuses())
			}
			if other := p.OrderOf(revision, ""); (other != nil) != (tc.byDefault != "") {
				t.Errorf("without a tag it is %+v", other)
			}
		})
	}
}

// The scheduler's other plugins judge the state of a node.
func TestOrderWhateverTheStateOfNodes(t *testing.T) {
	nodes := NewNodes([]Node{{Name: "a"}, {Name: "b", Reachable: true, Pressed: true}})
	p, err := Compile("gpu", specIn(t, "{followup: fail, blocks: [{workers: [{node: a}]}, {workers: [{node: b}]}]}"), nodes, Options{PlacesPods: true})
	if err != nil {
		t.Fatal(err)
	}
	o := NewOrder("gpu", types.NamespacedName{Namespace: "shop", Name: "cart-00001"}, p, nil)
	for node, want := range map[string]int{"a": 0, "b": 1} {
		if rank, goes := o.Rank(node); !goes || rank != want {
			t.Errorf("the rank of %s is %d, %t, want %d", node, rank, goes, want)
		}
	}
}

// Each function has its own order, which is also the order of its requests.
func TestOrderOfThePlatform(t *testing.T) {
	nodes := NewNodes([]Node{{Name: "a", Reachable: true}, {Name: "b", Reachable: true}})
	p, err := Compile("gpu", specIn(t, "{strategy: platform, blocks: [{workers: [{node: a}]}, {workers: [{node: b}]}]}"), nodes, Options{})
	if err != nil {
		t.Fatal(err)
	}
	policies := &Policies{}
	policies.force.Store(&force{policies: map[key]*enforced{{"shop", "gpu"}: {Program: p}}})
	firsts := map[string]int{}
	for _, name := range []string{"a-1", "b-1", "c-1", "d-1", "e-1", "f-1", "g-1", "h-1", "i-1", "j-1"} {
		revision := types.NamespacedName{Namespace: "shop", Name: name}
		o := policies.OrderOf(revision, "gpu")
		first := "a"
		if rank, _ := o.Rank("b"); rank == 0 {
			first = "b"
		}
		firsts[first]++
		if i, _ := p.Place(&placement.Query{Revision: revision}, []placement.Candidate{placement.NewCandidate(&placement.Target{Node: "a"}, nil), placement.NewCandidate(&placement.Target{Node: "b"}, nil)}); []string{"a", "b"}[i] != first {
			t.Errorf("the pods of %s are rather on %s, where its requests do not go first", name, first)
		}
	}
	if len(firsts) != 2 {
		t.Errorf("all have the same order: %v", firsts)
	}
}
