package script

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"libra.dev/libra/activator-plugin/placement"
)

// The paper's rewrite of its Figure 3, with each tolerance: the designated controller gets the request, wherever it
// arrived. While that controller is unavailable, another stands in for it: with "all" for all of the block's workers,
// with "same" for those in the controller's zone, and with "none" not at all.
func TestControllersAreWhatThePaperSays(t *testing.T) {
	everywhere := []string{"far", "near2", "db2", "db1"}
	for _, tc := range []struct {
		name, tolerance, zone string
		up                    bool // whether the zone east has an activator
		pods                  []string
		routed                string
		nodes                 map[string]int // where a request goes that is not passed on
	}{
		{"in the zone", "same", "east", true, everywhere, "", map[string]int{"db1": 0, "db2": 0, "near2": 0}},
		{"outside", "same", "west", true, everywhere, "east", nil},
		{"outside of any", "same", "", true, everywhere, "east", nil},
		{"outside, before there are pods", "same", "west", true, nil, "east", nil},
		{"outside, whatever workers there are", "same", "west", true, []string{"far"}, "east", nil},
		{"all is the default, and designates a controller, too", "", "west", true, everywhere, "east", nil},
		{"none does as well", "none", "west", true, everywhere, "east", nil},
		{"unavailable, all", "all", "west", false, everywhere, "", map[string]int{"db1": 0, "db2": 0, "near2": 0}},
		{"unavailable, by default", "", "west", false, everywhere, "", map[string]int{"db1": 0, "db2": 0, "near2": 0}},
		{"unavailable, same", "same", "west", false, everywhere, "", map[string]int{"db1": 0, "db2": 0}},
		{"unavailable, same, no such worker", "same", "west", false, []string{"near2", "far"}, "", map[string]int{"nowhere": -1}},
		{"unavailable, none", "none", "west", false, everywhere, "", map[string]int{"nowhere": -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := "- couchdb_query:\n  - controller: DBZoneCtl\n    workers:\n    - set: local\n      strategy: random\n"
			if tc.tolerance != "" {
				text += "    topology_tolerance: " + tc.tolerance + "\n"
			}
			tags, err := Convert([]byte(text+"  followup: default"), byLabel)
			if err != nil {
				t.Fatal(err)
			}
			c := cluster{zone: tc.zone, pods: tc.pods}
			p := c.compile(t, &tags[0].Policy)
			zone, forward := p.Route(&placement.Query{Revision: types.NamespacedName{Namespace: "shop", Name: "cart"}}, c.candidates, func(zone string) bool { return tc.up && zone == "east" })
			if zone != tc.routed || forward != (tc.routed != "") {
				t.Fatalf("routed to %q (%t), want %q", zone, forward, tc.routed)
			}
			if forward {
				return
			}
			if diff := cmp.Diff(tc.nodes, c.nodes(p)); diff != "" {
				t.Errorf("requests came to (-want +got):\n%s", diff)
			}
		})
	}
}

// With blocks of several controllers, the order of the blocks decides which one is designated.
func TestTheStrategyChoosesAmongControllers(t *testing.T) {
	tags, err := Convert([]byte(`
- two:
  - controller: east
    workers: [set: ]
    topology_tolerance: none
  - controller: south
    workers: [set: ]
    topology_tolerance: none
  strategy: best_first
- balanced:
  - controller: east
    workers: [set: ]
  - controller: south
    workers: [set: ]
  strategy: random
`), byLabel)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		tag  int
		up   []string
		want map[string]bool
	}{
		{0, []string{"east", "south"}, map[string]bool{"east": true}},
		{0, []string{"south"}, map[string]bool{"south": true}},
		{0, nil, map[string]bool{"": true}},
		{1, []string{"east", "south"}, map[string]bool{"east": true, "south": true}},
	} {
		c := cluster{zone: "west", pods: []string{"far", "db1"}}
		p := c.compile(t, &tags[tc.tag].Policy)
		got := map[string]bool{}
		for range 100 {
			zone, _ := p.Route(&placement.Query{}, c.candidates, func(zone string) bool { return slices.Contains(tc.up, zone) })
			got[zone] = true
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("with activators in %v %s is routed to (-want +got):\n%s", tc.up, tags[tc.tag].Name, diff)
		}
	}
}

func (c cluster) candidates() (candidates []placement.Candidate) {
	for i, node := range c.pods {
		candidates = append(candidates, placement.NewCandidate(&placement.Target{Dest: fmt.Sprintf("10.0.0.%d:8012", i), Node: node}, nil))
	}
	return candidates
}
