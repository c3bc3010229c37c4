package pooltest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

// followed has the latest profiles of all nodes, and up to where they were followed.
type followed struct {
	moments  pool.Moments
	profiles map[string]pool.Profile
	told     map[string]int64 // when a profile last came, in milliseconds
}

func (f *followed) follow(t *rapid.T, r *inRedis, now time.Time) {
	if f.moments == nil {
		*f = followed{make(pool.Moments), make(map[string]pool.Profile), make(map[string]int64)}
	}
	all, err := r.ReadProfiles(redistest.Context(t), f.moments)
	if err != nil {
		t.Fatal(err)
	}
	for _, changes := range all {
		for _, p := range changes.Profiles {
			f.profiles[p.Node], f.told[p.Node] = p, now.UnixMilli()
		}
		f.moments[changes.Redis] = changes.Until
	}
}

// checkProfile checks that a follower of the changes has the profile of the specification.
func (m *model) checkProfile(t *rapid.T) {
	now := m.clock.Now()
	m.redis.followed.follow(t, m.redis, now)
	// A profile that was not sent anew is a forecast from when it was sent: an invocation that is
	// predicted to end by now counts as ended, and one that counted as ended then still does when
	// the clock goes back.
	want, got := m.node().profile(m.redis.followed.told[m.name]), m.redis.followed.profiles[m.name]
	want.Node = m.name
	if diff := cmp.Diff(seenFrom(want, now), seenFrom(got, now), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("profile: Redis differs from the specification (-want +got):\n%s", diff)
	}
}

// seenFrom returns what a profile says about now and later.
func seenFrom(p pool.Profile, now time.Time) pool.Profile {
	p.Unused = stepsFrom(p.Unused, now)
	domains := make(map[string]pool.DomainProfile)
	for name, d := range p.Domains {
		d.Lends = stepsFrom(d.Lends, now)
		// A pod that has nothing left may still be listed.
		if len(d.Lends) > 1 || !d.Lends[0].Volume.IsZero() || !d.Surplus.IsZero() || !d.Lacks.IsZero() {
			domains[name] = d
		}
	}
	p.Domains = domains
	return p
}

func stepsFrom(steps []pool.Step, now time.Time) (from []pool.Step) {
	for i, s := range steps {
		if i+1 < len(steps) && !steps[i+1].From.After(now) {
			continue
		}
		switch n := len(from); {
		case n == 0:
			s.From = time.Time{}
			from = append(from, s)
		case from[n-1].Volume != s.Volume:
			from = append(from, s)
		}
	}
	return from
}

// at returns the volume at a moment.
func at(steps []pool.Step, moment time.Time) api.Resources {
	volume := steps[0].Volume
	for _, s := range steps[1:] {
		if !s.From.After(moment) {
			volume = s.Volume
		}
	}
	return volume
}

// A new borrower gets what the profile says for the moment until which it needs it, while no other
// domain's part is at stake.
func TestProfileIsLent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clk := testingclock.NewFakePassiveClock(epoch)
		m := NewMemory(clk)
		ctx := context.Background()
		hb := pool.Heartbeat{Agent: "agent-1", Epoch: "1", Whole: true, Pods: map[string]int64{"a/new": 0}, Lendable: drawResources(t, "lendable"), RestedAt: epoch}
		for i := range 5 {
			pod := fmt.Sprint("a/", i)
			hb.Pods[pod], hb.Rested = 0, append(hb.Rested, pod)
		}
		hb.Rested = append(hb.Rested, "a/new")
		if open, err := m.Heartbeat(ctx, "node", hb); err != nil || !open {
			t.Fatal(open, err)
		}
		for i := range rapid.IntRange(0, 8).Draw(t, "begun") {
			inv := drawInvocation(t)
			inv.ID, inv.Domain, inv.Pod = fmt.Sprint("i", i), "a", fmt.Sprint("a/", rapid.IntRange(0, 4).Draw(t, "in pod"))
			inv.Duration, inv.MinRemaining = time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms"))*time.Millisecond, 0
			if _, err := m.Begin(ctx, "node", inv); err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(t, "ends") == 0 {
				if _, err := m.End(ctx, "node", pool.Ending{ID: inv.ID, BeginAnswered: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		clk.SetTime(epoch.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "passed ms")) * time.Millisecond))
		changes, err := m.ReadProfiles(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		least := time.Duration(rapid.IntRange(1, 4000).Draw(t, "least ms")) * time.Millisecond
		inv := pool.Invocation{
			ID: "new", Function: "a/f", Pod: "a/new", Domain: "a", Owner: "activator-1", Duration: least, MinRemaining: least,
			Allocation: unlimited, Want: unlimited,
		}
		borrowed, err := m.Begin(ctx, "node", inv)
		if err != nil {
			t.Fatal(err)
		}
		var promised api.Resources
		if d, ok := changes[0].Profiles[0].Domains["a"]; ok {
			promised = at(d.Lends, clk.Now().Add(least-time.Millisecond))
		}
		if borrowed != promised {
			t.Fatalf("%v is lent for %v, and the profile says %v: %+v", borrowed, least, promised, changes[0].Profiles[0])
		}
	})
}

// With many donors, Redis tells fewer moments, and never promises more than there is.
func TestProfileOfMany(t *testing.T) {
	r := startRedis(t)
	clk := testingclock.NewFakePassiveClock(epoch)
	r.UseClock(clk)
	m := NewMemory(clk)
	const donors = 50
	ctx := redistest.Context(t)
	state, err := r.Read(ctx, "node")
	if err != nil {
		t.Fatal(err)
	}
	hb := pool.Heartbeat{
		Agent: "agent-1", Whole: true, Lendable: unlimited, Pods: map[string]int64{}, RestedAt: state.Now,
		Capacity: api.Resources{CPUMilli: 64_000, MemoryBytes: 1 << 42}, Idle: api.Resources{CPUMilli: 6000, MemoryBytes: 1 << 41},
	}
	for i := range donors {
		pod := fmt.Sprint("a/", i)
		hb.Pods[pod], hb.Rested = 0, append(hb.Rested, pod)
	}
	for p, epoch := range map[pool.Pool]string{r: state.Epoch, m: "1"} {
		hb.Epoch = epoch
		if open, err := p.Heartbeat(ctx, "node", hb); err != nil || !open {
			t.Fatal(open, err)
		}
		for i := range donors {
			inv := pool.Invocation{
				ID: fmt.Sprint(i), Function: "a/f", Pod: fmt.Sprint("a/", i), Domain: "a", Owner: "activator-1", Allocation: unlimited,
				Surplus: api.Resources{CPUMilli: 10 + int64(i), MemoryBytes: 1 << 20}, Duration: time.Duration(i*i+1) * time.Second,
				Ranked: true, CPUTime: time.Duration(i*i+1) * 100 * time.Millisecond, Predicted: api.Resources{CPUMilli: 1000},
			}
			if _, err := p.Begin(ctx, "node", inv); err != nil {
				t.Fatal(err)
			}
		}
	}
	exact := readOne(t, m)
	told := readOne(t, r)
	for _, of := range []struct{ exact, told []pool.Step }{{exact.Domains["a"].Lends, told.Domains["a"].Lends}, {exact.Unused, told.Unused}} {
		if len(of.told) != pool.MostSteps+1 || len(of.exact) != donors+1 {
			t.Fatalf("%d steps of %d", len(of.told), len(of.exact))
		}
		var sum, all float64
		for s := range 2600 {
			moment := epoch.Add(time.Duration(s) * time.Second)
			is, says := at(of.exact, moment), at(of.told, moment)
			if says.Max(is) != is {
				t.Fatalf("after %d s it promises %v of %v", s, says, is)
			}
			sum, all = sum+float64(says.CPUMilli), all+float64(is.CPUMilli)
		}
		if sum < 0.85*all {
			t.Errorf("it tells of %.3f of the CPU that there is", sum/all)
		}
	}
	if told.Begun != donors || told.Capacity != hb.Capacity || told.Idle != hb.Idle || !told.Open || told.Domains["a"].Surplus != exact.Domains["a"].Surplus {
		t.Errorf("%+v, want %+v", told, exact)
	}
}

type profiles interface {
	ReadProfiles(ctx context.Context, since pool.Moments) ([]pool.Changes, error)
}

// readOne returns the profile of the only node on which something has happened.
func readOne(t *testing.T, from profiles) pool.Profile {
	t.Helper()
	changes, err := from.ReadProfiles(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(changes[0].Profiles, func(p pool.Profile) bool { return p.Node == "node" })
	if i < 0 {
		t.Fatalf("no profile of the node in %+v", changes)
	}
	return changes[0].Profiles[i]
}

// Unused is what was idle, adjusted for what began since and what ends. On a busy node, invocations
// that wait come first.
func TestUnused(t *testing.T) {
	type ranked struct {
		milli int64 // that it uses on average
		lasts time.Duration
	}
	second := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }
	for _, tc := range []struct {
		name          string
		before, since []ranked // the heartbeat
		ended         int      // of those before it
		idle          int64
		want          map[int]int64 // after so many seconds
	}{
		{name: "nothing in flight", idle: 3000, want: map[int]int64{0: 3000, 60: 3000}},
		{name: "one that ends", before: []ranked{{1000, 10 * time.Second}}, idle: 3000, want: map[int]int64{0: 3000, 9: 3000, 10: 4000}},
		{name: "one that has ended", before: []ranked{{1000, 10 * time.Second}}, ended: 1, idle: 3000, want: map[int]int64{0: 4000, 10: 4000}},
		{name: "one that has begun", since: []ranked{{1500, 10 * time.Second}}, idle: 3000, want: map[int]int64{0: 1500, 10: 3000}},
		{name: "one whose time is that of smaller inputs", since: []ranked{{50_000, 10 * time.Second}}, idle: 3500, want: map[int]int64{0: 500, 10: 3500}},
		{name: "more than there is", since: []ranked{{1500, 10 * time.Second}, {2500, 20 * time.Second}}, idle: 3000, want: map[int]int64{0: 0, 10: 500, 20: 3000}},
		{
			// They have 3.7 cores of the 6 that they would use.
			name: "those that wait", before: []ranked{{3000, 10 * time.Second}, {3000, 20 * time.Second}}, idle: 300,
			want: map[int]int64{0: 0, 9: 0, 10: 1000, 20: 4000},
		},
		{
			// They use less than was predicted, and nobody waits.
			name: "those that do not", before: []ranked{{3000, 10 * time.Second}, {3000, 20 * time.Second}}, idle: 500,
			want: map[int]int64{0: 500, 10: 3500},
		},
		{name: "one of which nothing is predicted", since: []ranked{{1000, 0}}, idle: 3000, want: map[int]int64{0: 3000, 60: 3000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clk := testingclock.NewFakePassiveClock(epoch)
			m := NewMemory(clk)
			begin := func(id string, r ranked) {
				t.Helper()
				inv := pool.Invocation{
					ID: id, Function: "a/f", Pod: "a/" + id, Domain: "a", Owner: "activator-1", Allocation: unlimited, Ranked: true,
					Duration: r.lasts, CPUTime: r.lasts * time.Duration(r.milli) / 1000, Predicted: api.Resources{CPUMilli: 3000},
				}
				if _, err := m.Begin(t.Context(), "node", inv); err != nil {
					t.Fatal(err)
				}
			}
			for i, r := range tc.before {
				begin(fmt.Sprint("before-", i), r)
			}
			hb := pool.Heartbeat{Agent: "agent-1", Capacity: api.Resources{CPUMilli: 4000}, Idle: api.Resources{CPUMilli: tc.idle}}
			if _, err := m.Heartbeat(t.Context(), "node", hb); err != nil {
				t.Fatal(err)
			}
			for i := range tc.ended {
				if _, err := m.End(t.Context(), "node", pool.Ending{ID: fmt.Sprint("before-", i)}); err != nil {
					t.Fatal(err)
				}
			}
			for i, r := range tc.since {
				begin(fmt.Sprint("since-", i), r)
			}
			p := readOne(t, m)
			for after, want := range tc.want {
				if got := at(p.Unused, second(after)).CPUMilli; got != want {
					t.Errorf("after %d s %dm are unused, want %dm", after, got, want)
				}
			}
			// An invocation that has outlived its prediction may go on for long.
			clk.SetTime(second(3600))
			if got := at(readOne(t, m).Unused, second(7200)).CPUMilli; len(tc.before)+len(tc.since)-tc.ended > 0 && got > max(tc.want[0], 0) {
				t.Errorf("%dm are unused of a node on which all go on after their time, want %dm", got, tc.want[0])
			}
		})
	}
}
