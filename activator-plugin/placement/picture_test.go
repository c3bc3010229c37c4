package placement

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
	"libra.dev/libra/pkg/redisconn"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script answers each call with its next answer, and then with nothing new.
type script struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	answers []answer
	asked   []time.Time
	// before is called before each answer.
	before func()
}

type answer struct {
	changes []pool.Changes
	err     error
}

func (s *script) ReadProfiles(context.Context, pool.Moments) ([]pool.Changes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, s.clock.Now())
	if s.before != nil {
		s.before()
	}
	if len(s.answers) == 0 {
		return []pool.Changes{{Now: s.clock.Now()}}, nil
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	return next.changes, next.err
}

// fails makes that many answers errors.
func (s *script) fails(times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range times {
		s.answers = append(s.answers, answer{err: errors.New("Redis is away")})
	}
}

// wasAsked returns the times at which it was asked since the last call of wasAsked.
func (s *script) wasAsked() (asked []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, s.asked = s.asked, nil
	return asked
}

func (s *script) tells(now time.Time, profiles ...pool.Profile) {
	s.answers = append(s.answers, answer{changes: []pool.Changes{{Now: now, Profiles: profiles}}})
}

// fixture is a picture that hears what the test says.
type fixture struct {
	*Picture
	*script
	clock *testingclock.FakeClock
}

func newFixture(t testing.TB) *fixture {
	clk := testingclock.NewFakeClock(epoch)
	s := &script{clock: clk}
	return &fixture{Picture: newPicture(t, s, clk, zap.NewNop()), script: s, clock: clk}
}

func newPicture(t testing.TB, profiles Profiles, clk clock.Clock, logger *zap.Logger) *Picture {
	t.Helper()
	p, err := NewPicture(PictureOptions{Profiles: profiles, Clock: clk, Logger: logger.Sugar(), MeterProvider: noop.NewMeterProvider()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// hear refreshes the picture with these profiles.
func (f *fixture) hear(t testing.TB, profiles ...pool.Profile) {
	t.Helper()
	f.tells(f.clock.Now(), profiles...)
	if _, err := f.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) want(t testing.TB, v *View, source api.Source, want float64, known bool) {
	t.Helper()
	got, is := v.Coverage(source, wants(100), f.clock.Now())
	if math.Abs(got-want) > 1e-9 || is != known {
		t.Errorf("coverage of source %s is %v, known: %t; want %v, %t", source, got, is, want, known)
	}
}

// wants returns a demand for CPU.
func wants(milli int64) Demand {
	return Demand{Want: api.Resources{CPUMilli: milli}, Duration: time.Second}
}

// lending returns the profile of a node on which a domain has that much CPU to lend for a long time, and
// that much is idle.
func lending(node, domain string, lendsMilli, idleMilli int64) pool.Profile {
	return pool.Profile{
		Node: node, Heard: epoch, Open: true, Begun: 3, Capacity: api.Resources{CPUMilli: 4000, MemoryBytes: 8 << 30},
		Idle:   api.Resources{CPUMilli: 1000, MemoryBytes: 2 << 30},
		Unused: []pool.Step{{Volume: api.Resources{CPUMilli: idleMilli}}},
		Domains: map[string]pool.DomainProfile{domain: {Lends: []pool.Step{
			{Volume: api.Resources{CPUMilli: lendsMilli}}, {From: epoch.Add(time.Hour)},
		}}},
	}
}

func TestWhatIsKnown(t *testing.T) {
	f := newFixture(t)
	v, other, nowhere := f.View("node", "a"), f.View("node", "b"), f.View("nowhere", "a")
	f.want(t, v, api.SourceOwners, 0, false)
	f.want(t, nil, api.SourceOwners, 0, false)

	f.hear(t, lending("node", "a", 50, 100))
	half := cpuWeight*0.5 + (1 - cpuWeight)
	f.want(t, v, api.SourceOwners, half, true)
	f.want(t, v, api.SourceNode, 1, true)
	f.want(t, other, api.SourceOwners, 1-cpuWeight, true) // there is enough of what is not wanted
	f.want(t, other, api.SourceNode, 1, true)
	f.want(t, nowhere, api.SourceOwners, 0, false)
	f.want(t, f.View("node", "a"), api.SourceOwners, half, true)
	if p, known := v.Pressure(f.clock.Now()); !known || p != (Pressure{CPU: 0.75, Memory: 0.75}) {
		t.Errorf("pressure %+v, known: %t", p, known)
	}
	if n, known := v.InFlight(f.clock.Now()); !known || n != 3 {
		t.Errorf("%d in flight, known: %t", n, known)
	}

	f.clock.Step(oldestPicture)
	f.want(t, v, api.SourceOwners, half, true)
	f.clock.Step(time.Nanosecond)
	f.want(t, v, api.SourceOwners, 0, false)
	if _, known := v.Pressure(f.clock.Now()); known {
		t.Error("the pressure of an old picture is known")
	}
	if _, known := v.InFlight(f.clock.Now()); known {
		t.Error("what is in flight in an old picture is known")
	}
	f.hear(t)
	f.want(t, v, api.SourceOwners, half, true)

	// Its agent is silent.
	f.clock.SetTime(epoch.Add(pool.LeaseTTL))
	f.hear(t)
	f.want(t, v, api.SourceOwners, 0, false)

	beats := lending("node", "a", 100, 0)
	beats.Heard, beats.Capacity = f.clock.Now(), api.Resources{}
	f.hear(t, beats)
	f.want(t, v, api.SourceOwners, 1, true)
	f.want(t, v, api.SourceNode, 0, false) // nothing was measured
	if _, known := v.Pressure(f.clock.Now()); known {
		t.Error("a pressure that nobody has measured is known")
	}
	// In a new epoch nothing is known about the node.
	f.hear(t, pool.Profile{Node: "node", Unused: []pool.Step{{}}})
	f.want(t, v, api.SourceOwners, 0, false)
}

// The pool's clock may differ from the picture's.
func TestTimesAreThePools(t *testing.T) {
	f := newFixture(t)
	v := f.View("node", "a")
	ahead := 3 * time.Hour
	p := lending("node", "a", 100, 0)
	p.Heard = p.Heard.Add(ahead)
	p.Domains["a"].Lends[1].From = epoch.Add(ahead + time.Second)
	f.tells(epoch.Add(ahead), p)
	if _, err := f.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.want(t, v, api.SourceOwners, 1, true)
	f.clock.Step(500 * time.Millisecond)
	f.want(t, v, api.SourceOwners, cpuWeight*0.5+(1-cpuWeight), true)
}

func TestDebits(t *testing.T) {
	for _, source := range []api.Source{api.SourceOwners, api.SourceNode} {
		t.Run(string(source), func(t *testing.T) {
			f := newFixture(t)
			v := f.View("node", "a")
			v.Debit(source, wants(40), f.clock.Now()) // of an unknown node
			f.hear(t, lending("node", "a", 200, 200))
			f.want(t, v, source, 1, true)
			v.Debit(source, wants(150), f.clock.Now())
			half := cpuWeight*0.5 + (1 - cpuWeight)
			f.want(t, v, source, half, true)
			v.Debit(source, Demand{Want: api.Resources{CPUMilli: -1000, MemoryBytes: -1}}, f.clock.Now())
			f.want(t, v, source, half, true)

			f.hear(t) // nothing about this node
			f.want(t, v, source, half, true)
			// The answer to a refresh does not include what is decided meanwhile.
			f.before = func() { v.Debit(source, wants(125), f.clock.Now()) }
			f.hear(t, lending("node", "a", 200, 200))
			f.before = nil
			f.want(t, v, source, cpuWeight*0.75+(1-cpuWeight), true)
			f.hear(t, lending("node", "a", 200, 200))
			f.want(t, v, source, 1, true)
		})
	}
	t.Run("of one source", func(t *testing.T) {
		f := newFixture(t)
		a, b := f.View("node", "a"), f.View("node", "b")
		both := lending("node", "a", 100, 100)
		both.Domains["b"] = both.Domains["a"]
		f.hear(t, both)
		a.Debit(api.SourceOwners, wants(100), f.clock.Now())
		f.want(t, a, api.SourceOwners, 1-cpuWeight, true)
		f.want(t, a, api.SourceNode, 1, true)
		f.want(t, b, api.SourceOwners, 1, true)
		// All domains share what is idle.
		a.Debit(api.SourceNode, wants(100), f.clock.Now())
		f.want(t, b, api.SourceNode, 1-cpuWeight, true)
		f.want(t, b, api.SourceOwners, 1, true)
	})
}

// Each Redis of a cluster answers for its own nodes.
func TestSeveralRedis(t *testing.T) {
	f := newFixture(t)
	one, two := f.View("one", "a"), f.View("two", "a")
	tell := func(err error, names ...string) {
		a := answer{err: err}
		for _, name := range names {
			a.changes = append(a.changes, pool.Changes{Redis: name, Now: f.clock.Now(), Profiles: []pool.Profile{lending(name, "a", 100, 0)}})
		}
		f.answers = append(f.answers, a)
	}
	tell(nil, "one", "two")
	if _, err := f.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.clock.Step(oldestPicture)
	tell(errors.New("two is away"), "one")
	if told, err := f.refresh(t.Context()); err == nil || !told {
		t.Errorf("one told: %t, and two failed: %v", told, err)
	}
	f.clock.Step(time.Millisecond)
	f.want(t, one, api.SourceOwners, 1, true)
	f.want(t, two, api.SourceOwners, 0, false)

	// The Redis that had a node that moved still tells about it when it is asked for everything again.
	tell(nil, "one", "two")
	moved := lending("one", "a", 50, 0)
	moved.Heard = f.clock.Now()
	f.answers[0].changes[1].Profiles = append(f.answers[0].changes[1].Profiles, moved)
	tell(nil, "one")
	for range 2 {
		if _, err := f.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	f.want(t, one, api.SourceOwners, cpuWeight*0.5+(1-cpuWeight), true)
}

// A Redis that has not told everything counts as one that was not asked, though what it told is taken in. It makes
// nothing unknown that another has told.
func TestOneRedisTellsAllAndOneDoesNot(t *testing.T) {
	f := newFixture(t)
	whole, part := f.View("whole-2", "a"), f.View("part-1", "a")
	tell := func(err error, most map[string]int) {
		a := answer{err: err}
		for name, of := range most {
			for i := range of {
				a.changes = append(a.changes, pool.Changes{
					Redis: name, Now: f.clock.Now(), More: name == "part" || i < of-1,
					Profiles: []pool.Profile{lending(fmt.Sprint(name, "-", i), "a", 100, 0)},
				})
			}
		}
		f.answers = append(f.answers, a)
	}
	tell(nil, map[string]int{"whole": 3, "part": 2})
	if told, err := f.refresh(t.Context()); err != nil || !told {
		t.Fatalf("told: %t, %v", told, err)
	}
	f.want(t, whole, api.SourceOwners, 1, true)
	f.want(t, part, api.SourceOwners, 1, true)

	f.clock.Step(oldestPicture + time.Nanosecond)
	tell(errors.New("part hangs"), map[string]int{"whole": 3, "part": 2})
	if told, err := f.refresh(t.Context()); err == nil || !told || len(f.script.asked) != 2 {
		t.Errorf("after %d calls one has told all: %t, and one failed: %v", len(f.script.asked), told, err)
	}
	f.want(t, whole, api.SourceOwners, 1, true)
	f.want(t, part, api.SourceOwners, 0, false)

	tell(errors.New("too much"), map[string]int{"part": 1})
	if told, err := f.refresh(t.Context()); err == nil || told {
		t.Errorf("none has told all: %t, %v", told, err)
	}
	// What is gone is forgotten though another fails.
	f.clock.Step(forgetAfter + forgetEvery)
	tell(errors.New("part hangs"), map[string]int{"whole": 1})
	if _, err := f.refresh(t.Context()); err == nil || len(f.redis) != 1 || len(f.moments) != 1 {
		t.Errorf("%d Redis are kept, and moments of %d: %v", len(f.redis), len(f.moments), err)
	}
}

// Nodes, and Views that nobody holds, are forgotten. A caller that asks again gets another View that is
// as good.
func TestForgets(t *testing.T) {
	f := newFixture(t)
	views := make([]*View, 100)
	for i := range views {
		views[i] = f.View(fmt.Sprint("node-", i%50), fmt.Sprint("domain-", i))
	}
	f.hear(t, lending("node-0", "domain-0", 100, 0), lending("gone", "a", 100, 0))
	if f.View("node-0", "domain-0") != views[0] {
		t.Error("a View that is held is another one for the next")
	}
	f.want(t, views[0], api.SourceOwners, 1, true)
	kept := views[1]
	views = nil
	sizes := func() (nodes, views int) {
		for _, n := range f.nodes {
			views += len(n.views)
		}
		return len(f.nodes), views
	}
	for range 3 {
		runtime.GC()
	}
	f.clock.Step(forgetEvery)
	f.hear(t)
	if nodes, views := sizes(); nodes != 3 || views != 1 { // node-0, gone and node-1
		t.Errorf("%d nodes and %d Views are kept, want what was heard of and the one that is held", nodes, views)
	}
	f.want(t, f.View("node-0", "domain-0"), api.SourceNode, 0, false)
	f.clock.Step(forgetAfter + forgetEvery)
	f.hear(t)
	for range 3 {
		runtime.GC()
	}
	f.clock.Step(forgetEvery)
	f.hear(t)
	if nodes, views := sizes(); nodes != 1 || views != 1 {
		t.Errorf("%d nodes and %d Views are kept, of nodes that are gone", nodes, views)
	}
	runtime.KeepAlive(kept)
}

// A Redis that is gone from a cluster is forgotten.
func TestForgetsRedis(t *testing.T) {
	f := newFixture(t)
	f.answers = []answer{{changes: []pool.Changes{{Redis: "old"}, {Redis: "new"}}}, {changes: []pool.Changes{{Redis: "new"}}}}
	for range 2 {
		if _, err := f.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.clock.Step(forgetAfter + time.Second)
	}
	if _, age := f.figures(); age > 2*forgetAfter || len(f.redis) != 1 || len(f.moments) != 1 {
		t.Errorf("%d Redis are kept, and moments of %d; the picture is %v old", len(f.redis), len(f.moments), age)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		s := &script{clock: clock.RealClock{}}
		p := newPicture(t, s, clock.RealClock{}, zap.New(core))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		time.Sleep(10 * time.Second)
		asked := s.wasAsked()
		if n := len(asked); n < 90 || n > 110 {
			t.Errorf("asked %d times in 10 s, want 100", n)
		}
		if longest := longestBetween(asked); longest > refreshEvery+refreshJitter {
			t.Errorf("not asked for %v", longest)
		}

		s.fails(20)
		time.Sleep(20 * time.Second)
		asked = s.wasAsked()
		if n := len(asked); n > 20 {
			t.Errorf("asked %d times in 20 s of an outage", n)
		}
		if longest := longestBetween(asked); longest > mostBackoff+refreshJitter {
			t.Errorf("not asked for %v in an outage", longest)
		}
		time.Sleep(30 * time.Second)
		p.Use(time.Now())
		s.wasAsked()
		time.Sleep(time.Second)
		if n := len(s.wasAsked()); n < 9 {
			t.Errorf("asked %d times in a second after an outage", n)
		}
		stop()
		<-done
		var said []string
		for _, entry := range logs.All() {
			said = append(said, entry.Level.String())
		}
		if !slices.Equal(said, []string{"warn", "info"}) {
			t.Errorf("of one outage the log has %v", logs.All())
		}
	})
}

func longestBetween(times []time.Time) (longest time.Duration) {
	for i := 1; i < len(times); i++ {
		longest = max(longest, times[i].Sub(times[i-1]))
	}
	return longest
}

// The picture shows what a Redis says, and after the next refresh also what has begun.
func TestPictureOfRedis(t *testing.T) {
	r := pool.NewRedis(redisconn.MustParse(redistest.Start(t)))
	defer r.Close() //nolint:errcheck // the test ends
	p := newPicture(t, r, clock.RealClock{}, zap.NewNop())
	v := p.View("node", "default")
	ctx := redistest.Context(t)
	state, err := r.Read(ctx, "node")
	if err != nil {
		t.Fatal(err)
	}
	beat := pool.Heartbeat{
		Agent: "agent-1", Epoch: state.Epoch, Whole: true, Lendable: api.Resources{CPUMilli: 1000, MemoryBytes: 1 << 30},
		Capacity: api.Resources{CPUMilli: 4000, MemoryBytes: 4 << 30}, Idle: api.Resources{CPUMilli: 3000, MemoryBytes: 1 << 30},
		Pods: map[string]int64{"default/donor": 0, "default/ranked": 0}, Rested: []string{"default/donor", "default/ranked"}, RestedAt: state.Now,
	}
	refresh := func(err error) {
		t.Helper()
		if err == nil {
			_, err = p.refresh(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(source api.Source, milli int64, want float64) {
		t.Helper()
		got, known := v.Coverage(source, wants(milli), time.Now())
		if !known || math.Abs(got-want) > 1e-9 {
			t.Errorf("source %s covers %v of %dm, known: %t; want %v", source, got, milli, known, want)
		}
	}
	_, err = r.Heartbeat(ctx, "node", beat)
	refresh(err)
	expect(api.SourceOwners, 100, 1-cpuWeight)
	inv := pool.Invocation{
		ID: "donor", Function: "default/f", Pod: "default/donor", Domain: "default", Owner: "activator-1", Duration: time.Hour,
		Allocation: api.Resources{CPUMilli: 1000, MemoryBytes: 1 << 30}, Surplus: api.Resources{CPUMilli: 400},
	}
	_, err = r.Begin(ctx, "node", inv)
	refresh(err)
	expect(api.SourceOwners, 800, cpuWeight*0.5+(1-cpuWeight))
	if n, _ := v.InFlight(time.Now()); n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
	inv = pool.Invocation{
		ID: "ranked", Function: "default/f", Pod: "default/ranked", Domain: "default", Owner: "activator-1", Duration: time.Hour,
		Allocation: inv.Allocation, Ranked: true, CPUTime: time.Hour, Predicted: inv.Allocation,
	}
	_, err = r.Begin(ctx, "node", inv)
	refresh(err)
	expect(api.SourceNode, 4000, cpuWeight*0.5+(1-cpuWeight))
	if pressure, known := v.Pressure(time.Now()); !known || pressure != (Pressure{CPU: 0.25, Memory: 0.75}) {
		t.Errorf("pressure %+v, known: %t", pressure, known)
	}
}
