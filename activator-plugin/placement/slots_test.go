package placement

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/settings"
)

// last is a policy that takes the last candidate.
func last(_ *Query, candidates []Candidate) int { return len(candidates) - 1 }

func ip(i int) string { return fmt.Sprintf("10.0.0.%d", i+1) }

func dest(i int) string { return ip(i) + ":8012" }

func readyPod(i int, node string) Pod {
	return Pod{Name: fmt.Sprintf("ns/pod-%03d", i), Node: node, IPs: []string{ip(i)}, Ready: true}
}

// slotsOf returns Slots in which revID has a pod on each node.
func slotsOf(nodes ...string) *Slots {
	s := NewSlots(nil, nil)
	for i, node := range nodes {
		s.SetPod(revID, readyPod(i, node))
	}
	return s
}

func TestTake(t *testing.T) {
	for name, tc := range map[string]struct {
		pods       []Pod
		before     int // requests that Knative has left in pod 1
		ask        Ask
		index, of  int
		want       string
		outcome    Outcome
		candidates int
	}{
		"not asked":      {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, want: dest(0)},
		"asked of stock": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, ask: Ask{Policy: Stock}, want: dest(0), outcome: Kept, candidates: 2},
		"moved":          {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, ask: Ask{Policy: last}, want: dest(1), outcome: Moved, candidates: 2},
		"the other is full": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, before: 1, ask: Ask{Policy: last},
			want: dest(0), outcome: NoChoice, candidates: 1},
		"the other is not ready": {pods: []Pod{readyPod(0, "a"), {Name: "ns/b", Node: "b", IPs: []string{ip(1)}}}, ask: Ask{Policy: last},
			want: dest(0), outcome: NoChoice, candidates: 1},
		"the other has no address": {pods: []Pod{readyPod(0, "a"), {Name: "ns/b", Node: "b", Ready: true}}, ask: Ask{Policy: last},
			want: dest(0), outcome: NoChoice, candidates: 1},
		"Knative's is not known": {pods: []Pod{readyPod(1, "b"), readyPod(2, "c")}, ask: Ask{Policy: last},
			want: dest(0), outcome: Unready, candidates: 1},
		"Knative's is not ready": {pods: []Pod{{Name: "ns/a", Node: "a", IPs: []string{ip(0)}}, readyPod(1, "b"), readyPod(2, "c")}, ask: Ask{Policy: last},
			want: dest(0), outcome: Unready, candidates: 1},
		"another address of the pod": {pods: []Pod{readyPod(0, "a"), {Name: "ns/b", Node: "b", IPs: []string{"fd00::1", ip(1)}, Ready: true}}, ask: Ask{Policy: last},
			want: dest(1), outcome: Moved, candidates: 2},
		"another activator's": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b"), readyPod(2, "c")}, index: 1, of: 2, ask: Ask{Policy: Stock},
			want: dest(1), outcome: Moved, candidates: 1},
		"more activators than pods": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, index: 1, of: 3, ask: Ask{Policy: last},
			want: dest(0), outcome: NoChoice, candidates: 1},
		"allowed by a program": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, ask: Ask{Program: onNode("b")}, want: dest(1), outcome: Moved, candidates: 2},
		"refused by a program": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, ask: Ask{Program: onNode("c")}, outcome: Refused, candidates: 2},
		"allowed in another activator's": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b"), readyPod(2, "c")}, index: 1, of: 2, ask: Ask{Program: onNode("c")},
			want: dest(2), outcome: Moved, candidates: 3},
		"allowed in another's, of too few": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, index: 0, of: 3, ask: Ask{Program: onNode("b")},
			want: dest(1), outcome: Moved, candidates: 2},
		"allowed in a full one only": {pods: []Pod{readyPod(0, "a"), readyPod(1, "b")}, before: 1, ask: Ask{Program: onNode("b")},
			outcome: Refused, candidates: 1},
		"allowed in one that is known": {pods: []Pod{readyPod(1, "b")}, ask: Ask{Program: onNode("b")}, want: dest(1), outcome: Moved, candidates: 1},
		"the only one, allowed":        {pods: []Pod{readyPod(0, "a")}, ask: Ask{Program: onNode("a")}, want: dest(0), outcome: NoChoice, candidates: 1},
		"the only one, refused":        {pods: []Pod{readyPod(0, "a")}, ask: Ask{Program: onNode("b")}, outcome: Refused, candidates: 1},
		"not known, refused":           {ask: Ask{Program: onNode("b")}, outcome: Refused},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSlots(nil, nil)
			for _, p := range tc.pods {
				s.SetPod(revID, p)
			}
			if tc.of > 0 {
				s.SetActivators(revID, tc.index, tc.of)
			}
			r := s.Of(revID, 1)
			for range tc.before {
				r.Take(dest(1), Ask{})
			}
			got := r.Take(dest(0), tc.ask)
			if got.Dest != tc.want || got.Outcome != tc.outcome || got.Candidates != tc.candidates {
				t.Errorf("goes to %q of %d, %q; want %q of %d, %q", got.Dest, got.Candidates, got.Outcome, tc.want, tc.candidates, tc.outcome)
			}
			got.Release()
			if r.inFlight != tc.before {
				t.Errorf("%d requests are left, want %d", r.inFlight, tc.before)
			}
		})
	}
}

// onNode is a program that allows only a node's pods.
type onNode string

func (n onNode) Place(_ *Query, candidates []Candidate) (index, block int) {
	return slices.IndexFunc(candidates, func(c Candidate) bool { return c.Node == string(n) }), 3
}

func (n onNode) RefusedBy(string) string { return string(n) }

func TestAProgramsBlockIsTold(t *testing.T) {
	got := slotsOf("a", "b").Of(revID, 1).Take(dest(0), Ask{Program: onNode("b")})
	if got.Block != 3 || got.Node != "b" {
		t.Errorf("block %d, node %s; want 3 and b", got.Block, got.Node)
	}
}

func TestIPv6(t *testing.T) {
	s := NewSlots(nil, nil)
	for i, of := range [][]string{{"10.0.0.1", "fd00::1"}, {"10.0.0.2", "fd00::2"}} {
		s.SetPod(revID, Pod{Name: fmt.Sprint("ns/", i), Node: "a", IPs: of, Ready: true})
	}
	r := s.Of(revID, 1)
	if got := r.Take("[fd00::1]:8012", Ask{Policy: last}); got.Dest != "[fd00::2]:8012" {
		t.Errorf("goes to %s, want the other by the same family", got.Dest)
	}
	if got := s.Of(revID, 2).Take("10.0.0.1:8112", Ask{Policy: last}); got.Dest != "10.0.0.2:8112" {
		t.Errorf("goes to %s, want the other by the same family and port", got.Dest)
	}
}

// A pod that Knative tells about first keeps its requests when the API server tells about it.
func TestRequestsAreKnownBeforeTheirPod(t *testing.T) {
	for name, tell := range map[string]func(*Slots){
		"at once":           func(*Slots) {},
		"first its name":    func(s *Slots) { s.SetPod(revID, Pod{Name: "ns/pod-000"}) },
		"first its address": func(s *Slots) { s.SetPod(revID, Pod{Name: "ns/pod-000", Node: "a", IPs: []string{ip(0)}}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := slotsOf()
			r := s.Of(revID, 1)
			first := r.Take(dest(0), Ask{})
			tell(s)
			s.SetPod(revID, readyPod(0, "a"))
			s.SetPod(revID, readyPod(1, "b"))
			if !r.HasChoice() {
				t.Error("it has no choice")
			}
			second := r.Take(dest(1), Ask{Policy: func(_ *Query, c []Candidate) int { return len(c) - 1 }})
			if second.Candidates != 1 || second.Dest != dest(1) {
				t.Errorf("one of %d, %s; want the only one that is free", second.Candidates, second.Dest)
			}
			first.Release()
			second.Release()
			if got := r.Take(dest(1), Ask{Policy: Stock}); got.Candidates != 2 {
				t.Errorf("%d are free, want 2", got.Candidates)
			}
		})
	}
}

// The API server lists the pods of a lost node until they are deleted, while another pod may have their address.
func TestAnAddressIsThePodsThatTakesRequests(t *testing.T) {
	lost := Pod{Name: "ns/lost", Node: "lost", IPs: []string{ip(0)}}
	s := slotsOf("a", "b")
	s.SetPod(revID, lost)
	r := s.Of(revID, 1)
	if got := r.Take(dest(0), Ask{}); got.Node != "a" {
		t.Errorf("counts on node %q, want a", got.Node)
	}
	s.RemovePod(revID, "ns/pod-000")
	s.SetPod(revID, lost)
	lost.Ready = true
	s.SetPod(revID, lost)
	if got := r.Take(dest(0), Ask{}); got.Node != "lost" {
		t.Errorf("once the other is gone it counts on node %q, want the one that is ready", got.Node)
	}
}

// For a while, or until Knative picks it, or until no other pod has a free slot, no request is moved to a pod that
// could not be reached. Knative counts its slots all the same.
func TestAPodThatCannotBeReached(t *testing.T) {
	r := slotsOf("a", "b").Of(revID, 1)
	onB := func(_ *Query, candidates []Candidate) int {
		return max(0, slices.IndexFunc(candidates, func(c Candidate) bool { return c.Node == "b" }))
	}
	send := func(knatives int, at time.Duration) Choice {
		c := r.Take(dest(knatives), Ask{Policy: onB, Now: now.Add(at)})
		c.Release()
		return c
	}
	send(0, 0).Doubt(now)
	first := r.Take(dest(0), Ask{Policy: onB, Now: now})
	second := r.Take(dest(0), Ask{Policy: onB, Now: now})
	if first.Dest != dest(0) || second.Dest != dest(1) || second.Over {
		t.Errorf("of two one goes to %s and the other to %s", first.Dest, second.Dest)
	}
	first.Release()
	second.Release()
	for name, again := range map[string]struct {
		knatives int
		at       time.Duration
	}{"after a while": {0, doubtedFor + 1}, "when Knative picks it": {1, 1}} {
		if c := send(0, 0); c.Dest != dest(1) {
			t.Fatalf("it goes to %s", c.Dest)
		} else {
			c.Doubt(now)
		}
		if c := send(0, doubtedFor); c.Dest != dest(0) || c.Candidates != 1 {
			t.Errorf("the next one goes to %s of %d", c.Dest, c.Candidates)
		} else {
			c.Doubt(now) // Knative had sent it there
		}
		if c := send(again.knatives, again.at); c.Dest != dest(1) || c.Candidates != 2 {
			t.Errorf("%s it goes to %s of %d", name, c.Dest, c.Candidates)
		}
	}
}

// A doubt stands while Knative's own pick has a free slot, also where that is not this activator's pod.
func TestADoubtStandsBesideKnativesPick(t *testing.T) {
	r := slotsOf("a", "b").Of(revID, 1)
	doubted := r.Take(dest(0), Ask{Policy: last, Now: now})
	doubted.Release()
	doubted.Doubt(now)
	busy := r.Take(dest(0), Ask{Policy: last, Now: now})
	stray := "10.9.9.9:8012" // Knative knows it, and the API server has not told of it yet
	if c := r.Take(stray, Ask{Policy: last, Now: now}); c.Dest != stray {
		t.Errorf("it goes to %s", c.Dest)
	}
	busy.Release()
	if c := r.Take(dest(0), Ask{Policy: last, Now: now}); c.Dest != dest(0) {
		t.Errorf("the next one goes to %s, which is in doubt", c.Dest)
	}
}

// No request is refused because a pod could not be reached: the failure may have been the function's own answer.
func TestAProgramsOnlyPodThatCannotBeReached(t *testing.T) {
	r := slotsOf("a", "b").Of(revID, 1)
	send := func() Choice {
		c := r.Take(dest(0), Ask{Program: onNode("b"), Now: now})
		c.Release()
		return c
	}
	send().Doubt(now)
	if c := send(); c.Dest != dest(1) || c.Outcome != Moved {
		t.Errorf("the next one goes to %q, %s", c.Dest, c.Outcome)
	}
	r.Take(dest(1), Ask{})
	if c := send(); c.Outcome != Refused {
		t.Errorf("with that pod full the next one goes to %q, %s", c.Dest, c.Outcome)
	}
}

// lister is a Router that remembers the pods that it was given.
type lister struct {
	onNode
	pods []string
}

func (l *lister) Routes(string) bool { return true }

func (l *lister) Route(_ *Query, candidates func() []Candidate, _ func(string) bool) (string, bool) {
	l.pods = nil
	for _, c := range candidates() {
		l.pods = append(l.pods, c.Node)
	}
	return "near", true
}

// A request that is passed on is not placed here, so no request that is placed here ends the doubt.
func TestAPodThatCannotBeReachedIsRoutedByLater(t *testing.T) {
	s := slotsOf("a", "b")
	c := s.Of(revID, 1).Take(dest(0), Ask{Policy: last, Now: now})
	c.Release()
	c.Doubt(now)
	l := &lister{}
	for _, at := range []struct {
		after time.Duration
		want  []string
	}{{doubtedFor, []string{"a"}}, {doubtedFor + 1, []string{"a", "b"}}} {
		if s.Route(revID, 1, l, Ask{Now: now.Add(at.after)}, nil); !slices.Equal(l.pods, at.want) {
			t.Errorf("after %v it is routed by the pods on %v, want %v", at.after, l.pods, at.want)
		}
	}
}

func TestNothingIsLeftOfARevision(t *testing.T) {
	s := slotsOf("a", "b")
	r := s.Of(revID, 1)
	c := r.Take(dest(0), Ask{Policy: last})
	stray := r.Take("10.9.9.9:8012", Ask{Policy: last})
	for i := range 2 {
		s.RemovePod(revID, readyPod(i, "").Name)
	}
	if len(s.revisions) != 1 {
		t.Fatal("a revision with requests is forgotten")
	}
	c.Release()
	stray.Release()
	if len(s.revisions) != 0 || len(r.byIP) != 0 {
		t.Errorf("%d revisions and %d addresses are left", len(s.revisions), len(r.byIP))
	}
}

// A pod of a lost node may be reported ready once more, with an address that another pod has by now.
func TestAnAddressGoesBackToWhoHasIt(t *testing.T) {
	s := NewSlots(nil, nil)
	lost, has := readyPod(0, "a"), readyPod(1, "b")
	has.IPs = lost.IPs
	s.SetPod(revID, lost)
	s.SetPod(revID, has)
	unready := lost
	unready.Ready = false
	s.SetPod(revID, unready)
	s.SetPod(revID, lost)
	s.RemovePod(revID, lost.Name)
	c := s.Of(revID, 1).Take(dest(0), Ask{Policy: last, Now: now})
	if c.pod.Name != has.Name {
		t.Errorf("the request to its address is counted on %q, want on %q", c.pod.Name, has.Name)
	}
	c.Release()
}

// A pod is known even if it comes while the last request to a revision without pods ends.
func TestAPodComesAsARevisionIsForgotten(t *testing.T) {
	for range 10_000 {
		s := NewSlots(nil, nil)
		c := s.Of(revID, 1).Take(dest(0), Ask{})
		var ends sync.WaitGroup
		ends.Go(c.Release)
		s.SetPod(revID, readyPod(0, "a"))
		ends.Wait()
		if len(s.Of(revID, 1).pods) != 1 {
			t.Fatal("the pod is not known")
		}
	}
}

// Nor is anything left of a pod that only Knative knows and that gets no request.
func TestNothingIsLeftOfAStray(t *testing.T) {
	for name, tc := range map[string]struct {
		pods    []string
		program Program
		want    Outcome
	}{
		"refused":             {nil, onNode("a"), Refused},
		"refused, with a pod": {[]string{"a"}, onNode("b"), Refused},
		"moved":               {[]string{"a"}, onNode("a"), Moved},
	} {
		s := slotsOf(tc.pods...)
		r := s.Of(revID, 1)
		c := r.Take("10.9.9.9:8012", Ask{Program: tc.program})
		if c.Outcome != tc.want || r.byIP["10.9.9.9"] != nil {
			t.Errorf("%s: it is %s, and the stray is %v", name, c.Outcome, r.byIP["10.9.9.9"])
		}
		if len(tc.pods) > 0 {
			s.RemovePod(revID, readyPod(0, "").Name)
		}
		if c.Outcome == Moved {
			c.Release()
		}
		if len(s.revisions) != 0 || len(r.byIP) != 0 {
			t.Errorf("%s: %d revisions and %d addresses are left", name, len(s.revisions), len(r.byIP))
		}
	}
}

// sources has the source of each node.
type sources map[string]api.Source

func (s sources) Source(_, node string) api.Source { return s[node] }

func (s sources) For(string) settings.Settings { return settings.Default }

func TestSourcesAreFollowed(t *testing.T) {
	of := sources{"a": api.SourceNode, "b": api.SourceOwners}
	s := NewSlots(nil, of)
	s.SetPod(revID, readyPod(0, "a"))
	s.SetPod(revID, readyPod(1, "b"))
	var got map[string]api.Source
	see := func(_ *Query, candidates []Candidate) int {
		got = map[string]api.Source{}
		for _, c := range candidates {
			got[c.Node] = c.Source
		}
		return 0
	}
	r := s.Of(revID, 1)
	r.Take(dest(0), Ask{Policy: see}).Release()
	if got["a"] != api.SourceNode || got["b"] != api.SourceOwners {
		t.Errorf("sources are %v", got)
	}
	of["a"] = api.SourceOwners
	s.LendingChanged()
	r.Take(dest(0), Ask{Policy: see}).Release()
	if got["a"] != api.SourceOwners {
		t.Errorf("after a change sources are %v", got)
	}
}

// shared is a lending domain that namespaces can join.
type shared struct {
	sources
	domain string
}

func (s *shared) For(string) settings.Settings { return settings.Settings{Domain: s.domain} }

func TestDomainsAreFollowed(t *testing.T) {
	lending, views := &shared{}, &asked{}
	s := NewSlots(views, lending)
	s.SetPod(revID, readyPod(0, "a"))
	r := s.Of(revID, 1)
	r.Take(dest(0), Ask{}).Release()
	lending.domain = "team"
	// A change is told of up to a second later. Until then, a new pod has its view from where the others have theirs.
	s.SetPod(revID, readyPod(1, "b"))
	r.Take(dest(0), Ask{}).Release()
	if want := []string{revID.Namespace, revID.Namespace}; !slices.Equal(views.domains, want) {
		t.Errorf("views were asked for of %q, want %q", views.domains, want)
	}
	views.domains = nil
	s.LendingChanged()
	r.Take(dest(0), Ask{}).Release()
	if want := []string{"domain/team", "domain/team"}; !slices.Equal(views.domains, want) {
		t.Errorf("views were asked for of %q, want %q", views.domains, want)
	}
}

// asked remembers the domains for which it was asked for a View.
type asked struct{ domains []string }

func (a *asked) Use(time.Time) {}

func (a *asked) View(_, domain string) *View {
	a.domains = append(a.domains, domain)
	return nil
}

// Whatever comes, goes and is asked: the candidates are exactly this activator's pods with a free slot, each with
// its number of requests, and no request that is moved gives a pod too many.
func TestSlotsCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			concurrency = rapid.IntRange(1, 3).Draw(t, "concurrency")
			s           = NewSlots(nil, nil)
			pods        = map[int]Pod{}
			inFlight    = map[string]int{}
			taken       []Choice
		)
		check := func(_ *Query, candidates []Candidate) int {
			want := map[string]int{}
			for _, p := range pods {
				d := p.IPs[0] + ":8012"
				if p.Ready && inFlight[d] < concurrency {
					want[d] = inFlight[d]
				}
			}
			for _, c := range candidates {
				if n, ok := want[c.Dest]; !ok || n != c.InFlight {
					t.Fatalf("candidate %s has %d requests, want one of %v", c.Dest, c.InFlight, want)
				}
			}
			if len(candidates) != len(want) {
				t.Fatalf("%d candidates, want %v", len(candidates), want)
			}
			return rapid.IntRange(0, len(candidates)-1).Draw(t, "policy")
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i := rapid.IntRange(0, 4).Draw(t, "pod")
				p := readyPod(i, fmt.Sprint("node-", rapid.IntRange(0, 1).Draw(t, "node")))
				p.Ready = rapid.Bool().Draw(t, "ready")
				pods[i] = p
				s.SetPod(revID, p)
			},
			"remove": func(t *rapid.T) {
				i := rapid.IntRange(0, 4).Draw(t, "pod")
				if inFlight[dest(i)] > 0 {
					t.Skip("it has requests, and its address is not another's so soon")
				}
				delete(pods, i)
				s.RemovePod(revID, readyPod(i, "").Name)
			},
			"take": func(t *rapid.T) {
				var policy Policy
				if rapid.Bool().Draw(t, "asked") {
					policy = check
				}
				c := s.Of(revID, concurrency).Take(dest(rapid.IntRange(0, 4).Draw(t, "Knative's")), Ask{Policy: policy, Now: now})
				inFlight[c.Dest]++
				taken = append(taken, c)
				if over := inFlight[c.Dest] > concurrency; over != c.Over || over && c.Outcome == Moved {
					t.Fatalf("%s has %d, over: %v, %s", c.Dest, inFlight[c.Dest], c.Over, c.Outcome)
				}
			},
			"release": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip("none to release")
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "choice")
				taken[i].Release()
				inFlight[taken[i].Dest]--
				taken = slices.Delete(taken, i, i+1)
			},
		})
	})
}

func TestTakeAllocatesNothing(t *testing.T) {
	nodes := make([]string, 1000)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("node-%04d", i)
	}
	r := slotsOf(nodes...).Of(revID, 1)
	knatives := dest(0)
	ask := Ask{Now: now, Demand: Demand{Want: api.Resources{CPUMilli: 1000}, Duration: time.Second}}
	for _, name := range api.Placements {
		ask.Policy = Named(name)
		r.Take(knatives, ask).Release() // makes room
		if n := testing.AllocsPerRun(100, func() { r.Take(knatives, ask).Release() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { r.Take(knatives, Ask{}).Release() }); n != 0 {
		t.Errorf("not asked: %v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	for _, pods := range []int{1, 2, 10, 1000} {
		nodes := make([]string, pods)
		for i := range nodes {
			nodes[i] = fmt.Sprintf("node-%04d", i)
		}
		for _, name := range []api.Placement{"", api.PlacementStock, api.PlacementDefault} {
			b.Run(fmt.Sprintf("pods=%d/policy=%s", pods, name), func(b *testing.B) {
				b.ReportAllocs()
				r := slotsOf(nodes...).Of(revID, 1)
				ask, knatives := Ask{Now: now}, dest(0)
				if name != "" {
					ask.Policy = Named(name)
				}
				for b.Loop() {
					r.Take(knatives, ask).Release()
				}
			})
		}
	}
}

// A program is asked about the pods that the request would be placed among: this activator's, as long as one of them is free.
func TestRoutesGoByThisActivatorsPods(t *testing.T) {
	s := NewSlots(nil, nil)
	for i, node := range []string{"a", "b", "c", "d"} {
		s.SetPod(revID, readyPod(i, node))
	}
	s.SetActivators(revID, 1, 2)
	r := s.Of(revID, 1)
	var asked []string
	router := routes(func(candidates func() []Candidate) {
		asked = nil
		for _, c := range candidates() {
			asked = append(asked, c.Node)
		}
		slices.Sort(asked)
	})
	for _, want := range [][]string{{"b", "d"}, {"d"}, {"a", "c"}} {
		if s.Route(revID, 1, router, Ask{}, nil); !slices.Equal(asked, want) {
			t.Errorf("with %d requests it is asked about %v, want %v", r.inFlight, asked, want)
		}
		r.Take(dest(1), Ask{Policy: Stock})
	}
}

type routes func(candidates func() []Candidate)

func (f routes) Place(*Query, []Candidate) (index, block int) { return -1, 0 }
func (f routes) RefusedBy(string) string                      { return "" }
func (f routes) Routes(string) bool                           { return true }
func (f routes) Route(_ *Query, candidates func() []Candidate, _ func(string) bool) (zone string, forward bool) {
	f(candidates)
	return "", false
}
