package pool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
)

// A Watcher hears of every Begin and End of ranked invocations, and where that is not all,
// that the state has changed.
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

// Begun.At is by the pool's clock, like State.Now.
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
