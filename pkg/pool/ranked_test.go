package pool

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
)

// ranked is an invocation that neither lends nor borrows.
func ranked(id, pod string, cpuTime time.Duration) Invocation {
	inv := invocation(id, 0, cpu(0), cpu(0))
	inv.Pod, inv.Ranked, inv.CPUTime = "default/"+pod, true, cpuTime
	return inv
}

func (s scene) expectInFlight(want map[string][]Flight) {
	s.Helper()
	got := s.read().InFlight
	for _, pod := range slices.Collect(maps.Keys(got)) {
		got[pod[len("default/"):]] = got[pod]
		delete(got, pod)
	}
	s.equal(want, got)
}

// rankedScenes are those of what the agent ranks.
var rankedScenes = []play{
	{"what is ranked is told by pod, in the order of the Begins", func(s scene) {
		s.begin(ranked("1", "a", 40*time.Millisecond))
		s.pass(7 * time.Millisecond)
		s.begin(ranked("2", "b", 0))
		s.begin(ranked("3", "a", 300*time.Microsecond))
		unranked := ranked("4", "a", time.Second)
		unranked.Ranked = false
		s.begin(unranked)
		s.pass(3 * time.Millisecond)
		s.expectInFlight(map[string][]Flight{
			"a": {{ID: "1", Age: 10 * time.Millisecond, CPUTime: 40 * time.Millisecond}, {ID: "3", Age: 3 * time.Millisecond, CPUTime: time.Millisecond}},
			"b": {{ID: "2", Age: 3 * time.Millisecond}},
		})
		s.end("1")
		s.end("2")
		s.expectInFlight(map[string][]Flight{"a": {{ID: "3", Age: 3 * time.Millisecond, CPUTime: time.Millisecond}}})
	}},
	{"a Begin that comes again does not make it younger", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(time.Second)
		s.begin(ranked("1", "a", time.Second))
		s.expectInFlight(map[string][]Flight{"a": {{ID: "1", Age: time.Second, CPUTime: time.Second}}})
	}},
	{"what is ranked is told on a node that is closed, and lapses", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(LeaseTTL - time.Millisecond)
		s.expectInFlight(map[string][]Flight{"a": {{ID: "1", Age: LeaseTTL - time.Millisecond, CPUTime: time.Second}}})
		s.pass(time.Millisecond)
		s.expectInFlight(map[string][]Flight{})
	}},
	{"an unranked invocation after a ranked one", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.end("1")
		s.begin(invocation("b", time.Minute, cpu(0), cpu(0)))
		s.expectInFlight(map[string][]Flight{})
	}},
	{"a clock that goes back makes nothing younger than new", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(-time.Hour)
		s.expectInFlight(map[string][]Flight{"a": {{ID: "1", CPUTime: time.Second}}})
	}},
}

// Who ranks hears of every Begin and End of what is ranked, and where that is not all, that
// the state has changed.
func TestWatcherTellsOfWhatIsRanked(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	clock := testingclock.NewFakePassiveClock(epoch)
	r.UseClock(clock)
	openNode(t, r, "node", "default/a", "default/b")
	w := r.Watch("node")
	if first, err := w.Next(ctx); err != nil || !first.Changed { // which returns at once
		t.Fatalf("%+v, %v", first, err)
	}
	begin := func(inv Invocation) func() error {
		return func() error { _, err := r.Begin(ctx, "node", inv); return err }
	}
	end := func(id string) func() error {
		return func() error { _, err := r.End(ctx, "node", Ending{ID: id}); return err }
	}
	begun := func(id, pod string, cpuTime time.Duration) Events {
		return Events{Begun: []Begun{{ID: id, Pod: "default/" + pod, CPUTime: cpuTime}}}
	}
	ended := func(id, pod string) Events { return Events{Ended: []api.Ended{{ID: id, Pod: "default/" + pod}}} }
	unranked := ranked("unranked", "b", 0)
	unranked.Ranked = false
	for _, tc := range []struct {
		name string
		do   func() error
		want Events
	}{
		{"ranked begin", begin(ranked("1", "a", time.Second)), begun("1", "a", time.Second)},
		{"the same again", begin(ranked("1", "a", time.Second)), Events{}},
		{"another in the pod", begin(ranked("2", "a", 0)), begun("2", "a", 0)},
		{"unranked begin", begin(unranked), Events{}},
		{"unranked end", end(unranked.ID), ended("unranked", "b")},
		{"ranked end", end("1"), ended("1", "a")},
		{"the same end again", end("1"), Events{}},
		{"a begin after its end", begin(ranked("1", "a", time.Second)), Events{}},
		{"ranked begin in another pod", begin(ranked("3", "b", 700*time.Microsecond)), begun("3", "b", time.Millisecond)},
		{"the end of one and the begin of another", func() error {
			_, _, err := r.BeginAfter(ctx, "node", []Ending{{ID: "2"}}, ranked("4", "a", 0))
			return err
		}, Events{Begun: begun("4", "a", 0).Begun, Ended: ended("2", "a").Ended}},
		{"the lease of all in flight lapses", func() error {
			clock.SetTime(clock.Now().Add(LeaseTTL))
			return r.Renew(ctx, "node", unranked.Owner)
		}, Events{Changed: true}},
		{"an end of what has lapsed", end("3"), Events{}},
	} {
		if err := tc.do(); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if tc.want.Changed || tc.want.Begun != nil || tc.want.Ended != nil {
			got, err := w.Next(ctx)
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(Begun{}, "At"), cmpopts.IgnoreFields(api.Ended{}, "Function", "Configuration", "Alone", "Size"))
			if diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.name, diff)
			}
		}
		for i, stream := range w.streams.streams {
			if more, err := r.calls.XRange(ctx, stream, "("+w.streams.last[i], "+").Result(); err != nil || len(more) > 0 {
				t.Errorf("%s: untold %v, %v", tc.name, more, err)
			}
		}
	}
	state, err := r.Read(ctx, "node")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]Flight{}, state.InFlight); diff != "" {
		t.Errorf("in flight at last (-want +got):\n%s", diff)
	}
}

// What is begun is told at the time of the pool's clock, by which a state tells its own.
func TestWatcherTellsWhen(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := redistest.Context(t)
	w := r.Watch("node")
	if _, err := w.Next(ctx); err != nil {
		t.Fatal(err)
	}
	before, err := r.Read(ctx, "node")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Begin(ctx, "node", ranked("1", "a", time.Second)); err != nil {
		t.Fatal(err)
	}
	after, err := r.Read(ctx, "node")
	if err != nil {
		t.Fatal(err)
	}
	var events Events
	for len(events.Begun) == 0 { // the node's epoch has begun meanwhile
		if events, err = w.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if at := events.Begun[0].At; at.Before(before.Now) || at.After(after.Now.Add(time.Millisecond)) {
		t.Errorf("it began at %v, between the states of %v and %v", at, before.Now, after.Now)
	}
}
