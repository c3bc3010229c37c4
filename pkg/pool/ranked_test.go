package pool

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

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
			"a": {{Age: 10 * time.Millisecond, CPUTime: 40 * time.Millisecond}, {Age: 3 * time.Millisecond, CPUTime: time.Millisecond}},
			"b": {{Age: 3 * time.Millisecond}},
		})
		s.end("1")
		s.end("2")
		s.expectInFlight(map[string][]Flight{"a": {{Age: 3 * time.Millisecond, CPUTime: time.Millisecond}}})
	}},
	{"a Begin that comes again does not make it younger", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(time.Second)
		s.begin(ranked("1", "a", time.Second))
		s.expectInFlight(map[string][]Flight{"a": {{Age: time.Second, CPUTime: time.Second}}})
	}},
	{"what is ranked is told on a node that is closed, and lapses", func(s scene) {
		s.begin(ranked("1", "a", time.Second))
		s.pass(LeaseTTL - time.Millisecond)
		s.expectInFlight(map[string][]Flight{"a": {{Age: LeaseTTL - time.Millisecond, CPUTime: time.Second}}})
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
		s.expectInFlight(map[string][]Flight{"a": {{CPUTime: time.Second}}})
	}},
	{"what is ranked changes no version", func(s scene) {
		before := s.read().Version
		s.begin(ranked("1", "a", time.Second))
		s.end("1")
		s.equal(before, s.read().Version)
	}},
}

// Who waits for balances alone sleeps while requests come and go that are only ranked.
func TestBalancesAlone(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := testContext(t)
	openNode(t, r, "node", "default/donor", "default/borrower")
	w := r.Balances("node")
	if err := w.Wait(ctx); err != nil { // which returns at once
		t.Fatal(err)
	}
	woken := make(chan error)
	go func() { woken <- w.Wait(ctx) }()
	for _, id := range []string{"1", "2"} {
		if _, err := r.Begin(ctx, "node", ranked(id, "a", time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.End(ctx, "node", Ending{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	// A wait that has begun by now would have read those intents.
	time.Sleep(100 * time.Millisecond)
	select {
	case err := <-woken:
		t.Fatalf("woken by what is ranked, %v", err)
	default:
	}
	// One that is ranked and also changes balances is told of.
	donor := donor("donor")
	donor.Ranked = true
	for _, inv := range []Invocation{donor, borrower("borrower")} {
		if _, err := r.Begin(ctx, "node", inv); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	w = r.Balances("node")
	if err := w.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	go func() { woken <- w.Wait(ctx) }()
	if _, err := r.End(ctx, "node", Ending{ID: "donor"}); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Fatalf("the wait during which a loan ended: %v", err)
	}
}

// Whoever ranks is woken by every Begin and End of what is ranked, and only by those.
func TestRankedWakes(t *testing.T) {
	r := newRedis(t, redistest.Start(t))
	ctx := testContext(t)
	now := epoch
	r.nowMillis = func() int64 { return now.UnixMilli() }
	openNode(t, r, "node", "default/a", "default/b")
	w := r.Intents("node")
	if err := w.Wait(ctx); err != nil { // which returns at once
		t.Fatal(err)
	}
	begin := func(inv Invocation) func() error {
		return func() error { _, err := r.Begin(ctx, "node", inv); return err }
	}
	end := func(id string) func() error {
		return func() error { _, err := r.End(ctx, "node", Ending{ID: id}); return err }
	}
	unranked := invocation("unranked", time.Second, cpu(0), cpu(0))
	for _, tc := range []struct {
		name string
		do   func() error
		want []string // pods
	}{
		{"ranked begin", begin(ranked("1", "a", time.Second)), []string{"default/a"}},
		{"the same again", begin(ranked("1", "a", time.Second)), nil},
		{"another in the pod", begin(ranked("2", "a", 0)), []string{"default/a"}},
		{"unranked begin", begin(unranked), nil},
		{"unranked end", end(unranked.ID), nil},
		{"ranked end", end("1"), []string{"default/a"}},
		{"the same end again", end("1"), nil},
		{"a begin after its end", begin(ranked("1", "a", time.Second)), nil},
		{"ranked begin in another pod", begin(ranked("3", "b", time.Second)), []string{"default/b"}},
		{"the lease of all in flight lapses", func() error {
			now = now.Add(LeaseTTL)
			return r.Renew(ctx, "node", unranked.Owner)
		}, []string{"default/a\ndefault/b", "default/b\ndefault/a"}},
		{"an end of what has lapsed", end("3"), nil},
	} {
		if err := tc.do(); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		var entries []redis.XMessage
		for i, stream := range w.intents.streams {
			found, err := r.calls.XRange(ctx, stream, "("+w.intents.last[i], "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			entries = append(entries, found...)
		}
		if tc.want == nil {
			if len(entries) > 0 {
				t.Errorf("%s woke: %v", tc.name, entries)
			}
			continue
		}
		if len(entries) != 1 || !slices.Contains(tc.want, entries[0].Values["pods"].(string)) {
			t.Errorf("%s appended the intents %v, want one of %q", tc.name, entries, tc.want)
			continue
		}
		if err := w.Wait(ctx); err != nil {
			t.Errorf("the wait after %s: %v", tc.name, err)
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
