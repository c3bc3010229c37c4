package tapp

import (
	"testing"
	"testing/synctest"

	"libra.dev/libra/activator-plugin/placement"
)

// If a block's zone can be reached, the request is passed on whatever the pods are. There may be very many
// of them.
func TestWhatIsPassedOnAsksForNoPods(t *testing.T) {
	p := compiled(t, "{blocks: [{controller: {zone: east}, workers: [{set: {}}]}]}", manyNodes(2), Options{Zone: "west"})
	none := func() []placement.Candidate {
		t.Error("it asks for the pods")
		return nil
	}
	if zone, forward := p.Route(&placement.Query{}, none, func(string) bool { return true }); zone != "east" || !forward {
		t.Errorf("it is routed to %q (%t)", zone, forward)
	}
}

// If a policy has no valid worker, the default that follows it may designate the activators of another
// zone.
func TestTheDefaultThatFollowsRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newCluster(t,
			policyObject("shop", "gpu", 1, "{blocks: [{workers: [{node: a}]}]}"),
			policyObject("shop", "fails", 1, "{followup: fail, blocks: [{workers: [{node: a}]}]}"),
			policyObject("shop", "default", 1, "{blocks: [{controller: {zone: east}, workers: [{set: {}}]}]}"),
			policyObject("", "gpu", 1, "{blocks: [{workers: [{node: a}]}]}"),
		).follow()
		f.settle()
		for _, tc := range []struct {
			namespace, tag, node string // node is that of the only free pod
			up                   bool
			routes               bool
			want                 string
		}{
			{"shop", "gpu", "a", true, true, ""},
			{"shop", "gpu", "b", true, true, "east"},
			{"shop", "gpu", "b", false, true, ""},
			{"shop", "fails", "b", true, false, ""},
			{"shop", "", "a", true, true, "east"},
			{"bank", "gpu", "b", true, false, ""},
		} {
			q := &placement.Query{}
			q.Revision.Namespace = tc.namespace
			router := f.policies.Of(tc.namespace, tc.tag).(placement.Router)
			if got := router.Routes(tc.namespace); got != tc.routes {
				t.Errorf("%s/%s routes: %t, want %t", tc.namespace, tc.tag, got, tc.routes)
			}
			zone, forward := router.Route(q, func() []placement.Candidate {
				return []placement.Candidate{placement.NewCandidate(&placement.Target{Dest: "10.0.0.1:8012", Node: tc.node}, nil)}
			}, func(zone string) bool { return tc.up })
			if zone != tc.want || forward != (tc.want != "") {
				t.Errorf("%s/%s with a pod on %s is routed to %q (%t), want %q", tc.namespace, tc.tag, tc.node, zone, forward, tc.want)
			}
		}
	})
}
