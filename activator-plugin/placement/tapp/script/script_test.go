package script

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/activator-plugin/placement/tapp"
	"libra.dev/libra/pkg/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var byLabel = Options{WorkerLabel: "libra.dev/worker", SetLabel: "libra.dev/worker-set", Zones: map[string]string{"DBZoneCtl": "east"}}

func convert(t *testing.T, name string) []Tag {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tags, err := Convert(text, byLabel)
	if err != nil {
		t.Fatal(err)
	}
	return tags
}

func TestThePapersScriptsBecomePolicies(t *testing.T) {
	for _, name := range []string{"figure3", "set", "topology", "prototype", "app"} {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			for _, tag := range convert(t, name) {
				spec, err := yaml.Marshal(tag.Policy.Spec)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&got, "# %s: %s %s\n%s---\n", tag.Name, tag.Policy.Kind, tag.Policy.Name, spec)
			}
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("not as in %s, which -update writes (-want +got):\n%s", golden, diff)
			}
		})
	}
}

// cluster is the cluster of the paper's case: a database's zone and another, with nodes that have the
// script's labels.
type cluster struct {
	zone     string
	cpu      map[string]float64
	inFlight map[string]int
	down     string
	pressed  string
	pods     []string // nodes that have a pod with a free slot
}

var ofNode = map[string]labels.Set{
	"db1":   {"libra.dev/worker": "DB_worker1", "libra.dev/worker-set": "local", corev1.LabelTopologyZone: "east"},
	"db2":   {"libra.dev/worker": "DB_worker2", "libra.dev/worker-set": "local", corev1.LabelTopologyZone: "east"},
	"near1": {"libra.dev/worker": "near_DB_worker1", corev1.LabelTopologyZone: "east"},
	"near2": {"libra.dev/worker": "near_DB_worker2", "libra.dev/worker-set": "local", corev1.LabelTopologyZone: "west"},
	"far":   {corev1.LabelTopologyZone: "west"},
}

func (c cluster) program(t *testing.T, script, name string) *tapp.Program {
	t.Helper()
	for _, tag := range convert(t, script) {
		if tag.Policy.Name == name {
			return c.compile(t, &tag.Policy)
		}
	}
	t.Fatalf("%s has no tag %s", script, name)
	return nil
}

func (c cluster) compile(t *testing.T, policy *v1alpha1.PlacementPolicy) *tapp.Program {
	t.Helper()
	var nodes []tapp.Node
	for node, with := range ofNode {
		nodes = append(nodes, tapp.Node{Name: node, Labels: with, Reachable: node != c.down, Pressed: node == c.pressed})
	}
	p, err := tapp.Compile(policy.Name, &policy.Spec, tapp.NewNodes(nodes), tapp.Options{
		Zone:   c.zone,
		Policy: func(v1alpha1.Strategy) placement.Policy { return first },
		Load: func(_ *placement.Query, of *placement.Candidate) (float64, int) {
			return c.cpu[of.Node], c.inFlight[of.Node]
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func first(*placement.Query, []placement.Candidate) int { return 0 }

// nodes returns which nodes a hundred requests go to, and by which block.
func (c cluster) nodes(p *tapp.Program) map[string]int {
	candidates := c.candidates()
	got := map[string]int{}
	for range 100 {
		switch i, block := p.Place(&placement.Query{Revision: types.NamespacedName{Namespace: "shop", Name: "cart"}}, candidates); {
		case i < 0:
			got["nowhere"] = block
		default:
			got[candidates[i].Node] = block
		}
	}
	return got
}

func TestThePapersScriptsDoWhatThePaperSays(t *testing.T) {
	everywhere := []string{"far", "near2", "near1", "db2", "db1"}
	busy := map[string]float64{"db1": .5, "db2": .7}
	for _, tc := range []struct {
		name, script, tag string
		cluster
		want map[string]int
	}{
		{"the default takes any", "figure3", "default", cluster{pods: everywhere}, map[string]int{"far": 0}},
		{"the default passes over an overloaded one", "figure3", "default", cluster{pods: everywhere, pressed: "far"}, map[string]int{"near2": 0}},
		{"the default fails", "figure3", "default", cluster{pods: []string{"far"}, down: "far"}, map[string]int{"nowhere": -1}},
		{"one of the database's, by chance", "figure3", "couchdb-query", cluster{pods: everywhere}, map[string]int{"db1": 0, "db2": 0}},
		{"the one that is under half its capacity", "figure3", "couchdb-query", cluster{pods: everywhere, cpu: map[string]float64{"db1": .5, "db2": .49}}, map[string]int{"db2": 0}},
		{"the one that is reachable", "figure3", "couchdb-query", cluster{pods: everywhere, down: "db2"}, map[string]int{"db1": 0}},
		{"both used up: the first that is near", "figure3", "couchdb-query", cluster{pods: everywhere, cpu: busy}, map[string]int{"near1": 1}},
		{"up to a hundred invocations", "figure3", "couchdb-query", cluster{pods: everywhere, cpu: busy, inFlight: map[string]int{"near1": 99}}, map[string]int{"near1": 1}},
		{"then the next", "figure3", "couchdb-query", cluster{pods: everywhere, cpu: busy, inFlight: map[string]int{"near1": 100}}, map[string]int{"near2": 1}},
		{"pressure does not count where the block asks for something else", "figure3", "couchdb-query", cluster{pods: everywhere, pressed: "db1", cpu: map[string]float64{"db2": 1}}, map[string]int{"db1": 0}},
		{"all invalid: fail", "figure3", "couchdb-query", cluster{pods: everywhere, cpu: busy, inFlight: map[string]int{"near1": 100, "near2": 100}}, map[string]int{"nowhere": -1}},
		{"no pod on any of them: fail", "figure3", "couchdb-query", cluster{pods: []string{"far"}}, map[string]int{"nowhere": -1}},
		{"a set, by chance", "set", "local-only", cluster{pods: everywhere}, map[string]int{"db1": 0, "db2": 0, "near2": 0}},
		{"a set without those that are used up", "set", "local-only", cluster{pods: everywhere, cpu: busy}, map[string]int{"near2": 0}},
		{"an activator in the zone", "topology", "couchdb-query", cluster{zone: "east", pods: everywhere}, map[string]int{"db1": 0, "db2": 0, "near2": 0}},
		{"one outside stays with workers in the zone", "topology", "couchdb-query", cluster{zone: "west", pods: everywhere}, map[string]int{"db1": 0, "db2": 0}},
		{"one outside without such workers", "topology", "couchdb-query", cluster{zone: "west", pods: []string{"near2", "far"}}, map[string]int{"nowhere": -1}},
		{"tolerance none, in the zone", "prototype", "a-policy-tag", cluster{zone: "controller", pods: everywhere}, map[string]int{"far": 0}},
		{"tolerance none, outside", "prototype", "a-policy-tag", cluster{zone: "west", pods: everywhere}, map[string]int{"nowhere": -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.nodes(tc.program(t, tc.script, tc.tag))); diff != "" {
				t.Errorf("requests came to (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConvertSaysWhatIsWrongAndWhere(t *testing.T) {
	for _, tc := range []struct{ name, script, want string }{
		{"nothing", "", `the script is empty, want tags such as "- default: [...]"`},
		{"no YAML", "- a: [", "the script is not YAML: "},
		{"no tags", "- workers", `line 1: a tag is "workers", want keys with values`},
		{"no name", "- followup: fail", "line 1: the entry has no tag, want the name of a tag with a list of blocks"},
		{"no blocks", "- a:\n  followup: fail", "line 1: tag a: want a list with at least one entry"},
		{"a tag of blocks that are none", "- a:\n  - set", `line 2: a block is "set", want keys with values`},
		{"two names", "- a_b: [{workers: [set: ]}]\n- A-B: [{workers: [set: ]}]", "line 2: the tags a_b and A-B are both called a-b in Kubernetes"},
		{"followup of two", "- a: [{workers: [set: ]}]\n  b: [{workers: [set: ]}]\n  followup: fail", "line 1: strategy and followup apply to one tag, but the entry has 2"},
		{"no workers", "- a:\n  - strategy: random\n    invalidate: overload", "line 2: the block has no workers, want a list of wrk and set"},
		{"unknown", "- a:\n  - worker: [set: ]", `line 2: a block has no field "worker", want controller, topology_tolerance, workers, strategy, invalidate or followup`},
		{"strategy", "- a:\n  - workers: [set: ]\n    strategy: best", `line 3: strategy is "best", want best_first or platform or random`},
		{"strategy of a wrk", "- a:\n  - workers:\n    - wrk: b\n      strategy: random", "line 4: a wrk cannot have a strategy, want strategy beside workers"},
		{"set and wrk", "- a:\n  - workers:\n    - wrk: b\n      set: c", "line 3: a worker is either a wrk or a set"},
		{"wrk without a label", "- a:\n  - workers:\n    - wrk:", "line 3: the wrk has no label"},
		{"tolerance beside a set", "- a:\n  - workers:\n    - set: b\n      topology_tolerance: same", `line 4: a worker has no field "topology_tolerance"`},
		{"tolerance without a controller", "- a:\n  - workers: [set: ]\n    topology_tolerance: same", "line 3: topology_tolerance has no controller to apply to"},
		{"tolerance", "- a:\n  - workers: [set: ]\n    controller: b\n    topology_tolerance: some", `line 4: topology_tolerance is "some", want all or none or same`},
		{"invalidate", "- a:\n  - workers: [set: ]\n    invalidate: capacity 50", `line 3: invalidate is "capacity 50", want overload, capacity_used 50% or max_concurrent_invocations 100`},
		{"invalidate by percent", "- a:\n  - workers: [set: ]\n    invalidate: max_concurrent_invocations 50%", `line 3: invalidate is "max_concurrent_invocations 50%", want `},
		{"invalidate by more than all", "- a:\n  - workers: [set: ]\n    invalidate: capacity_used 150%", "line 1: tag a: spec.blocks[0].invalidate.capacityUsedPercent: Invalid value: 150: want 1 to 100"},
		{"followup", "- a:\n  - workers: [set: ]\n  followup: retry", `line 3: followup is "retry", want default or fail`},
		{"followup of the default", "- default:\n  - workers: [set: ]\n  followup: default", "line 1: tag default: spec.followup: Invalid value"},
		{"a label that Kubernetes has not", "- a:\n  - workers: [wrk: b c]", "line 1: tag a: spec.blocks[0].workers[0].set.matchLabels[libra.dev/worker]: Invalid value: \"b c\": want a value of a node label"},
		{"a name that Kubernetes has not", "- a b:\n  - workers: [set: ]", "line 1: the tag a b would be called \"a b\" in Kubernetes, want letters, digits and - or _ in between"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tags, err := Convert([]byte(tc.script), byLabel)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v, want an error with %q", tags, err, tc.want)
			}
		})
	}
}

func TestConvertNamesAllThatIsWrong(t *testing.T) {
	_, err := Convert([]byte("- a:\n  - workers: [set: ]\n    strategy: x\n    invalidate: y\n- b: []"), byLabel)
	for _, want := range []string{"line 3: strategy", "line 4: invalidate", "line 5: tag b"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func FuzzConvert(f *testing.F) {
	for _, name := range []string{"figure3", "set", "topology", "prototype", "app"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tags, err := Convert(text, byLabel)
		if err != nil {
			return
		}
		for _, tag := range tags {
			if errs := tapp.Validate(tag.Policy.Name, &tag.Policy.Spec); len(errs) > 0 {
				t.Errorf("tag %s is converted to what is refused: %v", tag.Name, errs)
			}
		}
	})
}
