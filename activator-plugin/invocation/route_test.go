package invocation

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"libra.dev/libra/activator-plugin/placement"
	"libra.dev/libra/pkg/api"
)

// abroad routes to its zone every request that may be passed on, and remembers what it was asked.
type abroad struct {
	zone           string
	routed, placed []placement.Query
	candidates     int
}

func (a *abroad) Routes(string) bool { return a.zone != "" }

func (a *abroad) Route(q *placement.Query, candidates func() []placement.Candidate, reachable func(string) bool) (string, bool) {
	a.routed, a.candidates = append(a.routed, *q), len(candidates())
	return a.zone, reachable(a.zone)
}

func (a *abroad) Place(q *placement.Query, _ []placement.Candidate) (index, block int) {
	a.placed = append(a.placed, *q)
	return 0, 0
}

func (a *abroad) RefusedBy(string) string { return a.zone }

func tagged(change func(*v1.Revision)) *v1.Revision {
	rev := newRevision()
	metav1.SetMetaDataLabel(&rev.ObjectMeta, api.PlacementLabel, "abroad")
	if change != nil {
		change(rev)
	}
	return rev
}

func incoming(t *testing.T, rev *v1.Revision) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://cart.shop.example.com", nil)
	return r.WithContext(activatorhandler.WithRevisionAndID(t.Context(), rev, revID))
}

func TestWhatAProgramRoutesElsewhere(t *testing.T) {
	full := fixed{mode: api.ModeFull, source: api.SourceOwners}
	for _, tc := range []struct {
		name      string
		settings  fixed
		rev       *v1.Revision
		program   string // zone that it routes to
		forwarded bool
		reachable bool
		want      bool
	}{
		{"passed on", full, tagged(nil), "near", false, true, true},
		{"not reachable", full, tagged(nil), "near", false, false, false},
		{"passed on already", full, tagged(nil), "near", true, true, false},
		{"nothing to route", full, tagged(nil), "", false, true, false},
		{"without the tag", full, newRevision(), "near", false, true, false},
		{"opted out", full, tagged(func(r *v1.Revision) { delete(r.Labels, api.EnabledLabel) }), "near", false, true, false},
		{"without a bound of concurrency", full, tagged(func(r *v1.Revision) { r.Spec.ContainerConcurrency = ptr.To[int64](0) }), "near", false, true, false},
		{"not placed", fixed{mode: api.ModeLend, source: api.SourceOwners}, tagged(nil), "near", false, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			program := &abroad{zone: tc.program}
			p := newPlacing(t, tc.settings, programs{"abroad": program}, newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
			zone, forward, here := p.Route(incoming(t, tc.rev), tc.forwarded, func(string) bool { return tc.reachable })
			if forward != tc.want || forward != (zone != "") || here == nil {
				t.Fatalf("routed to %q (%t), want it passed on: %t", zone, forward, tc.want)
			}
			if n := len(program.routed); n == 1 && program.candidates != 2 {
				t.Errorf("it was asked about %d pods, want both", program.candidates)
			}
		})
	}
}

// A request that stays is placed by the same facts that it was routed by: the order of what is left to chance, and
// whether another activator has passed the request on.
func TestWhatStaysIsPlacedAsItWasRouted(t *testing.T) {
	for zone, forwarded := range map[string]bool{"near": false, "far": true, "": true} {
		program := &abroad{zone: zone}
		p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners}, programs{"abroad": program}, newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
		rev := tagged(nil)
		_, _, here := p.Route(incoming(t, rev), forwarded, func(string) bool { return false })
		ctx := context.WithValue(here.Context(), requestKey{}, newRequest(rev))
		if err := p.Throttler(oneDest{dest: ipA + ":8012"}).Try(ctx, revID, func(string, bool) error { return nil }); err != nil {
			t.Fatal("Try() =", err)
		}
		if len(program.placed) != 1 {
			t.Fatalf("it was placed %d times", len(program.placed))
		}
		placed := program.placed[0]
		if placed.Forwarded != forwarded || placed.Order == 0 {
			t.Errorf("zone %q: it was placed as passed on: %t, with the order %d", zone, placed.Forwarded, placed.Order)
		}
		if !forwarded && program.routed[0].Order != placed.Order {
			t.Errorf("it was routed with the order %d and placed with %d", program.routed[0].Order, placed.Order)
		}
		if forwarded && len(program.routed) > 0 {
			t.Error("what was passed on was routed again")
		}
	}
}

// A pod that cannot be reached, or is full here, does not count for routing. A revision that is not known has no pods.
func TestOnlyFreePodsAreRoutedBy(t *testing.T) {
	program := &abroad{zone: "near"}
	p := newPlacing(t, fixed{mode: api.ModeFull, source: api.SourceOwners}, programs{"abroad": program}, newPod("a", ipA, onNode("node-a")), newPod("b", ipB, onNode("node-b")))
	everywhere := func(string) bool { return true }
	taken := p.Slots().Of(revID, 1).Take(ipA+":8012", placement.Ask{})
	if p.Route(incoming(t, tagged(nil)), false, everywhere); program.candidates != 1 {
		t.Errorf("with one of two pods full it was asked about %d", program.candidates)
	}
	taken.Release()
	r := incoming(t, tagged(nil))
	other := revID
	other.Name = "unknown"
	r = r.WithContext(activatorhandler.WithRevisionAndID(r.Context(), tagged(nil), other))
	if _, forward, _ := p.Route(r, false, everywhere); !forward || program.candidates != 0 {
		t.Errorf("of a revision without pods it was asked about %d, and passed on: %t", program.candidates, forward)
	}
}
