package pool_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/redis/go-redis/v9"
	testingclock "k8s.io/utils/clock/testing"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/pooltest"
	"libra.dev/libra/pkg/pool/redistest"
)

func cpu(milli int64) api.Resources { return api.Resources{CPUMilli: milli} }

func invocation(id string, lasts time.Duration, surplus, want api.Resources) pool.Invocation {
	return pool.Invocation{
		ID: id, Function: "default/f-00001", Pod: "default/" + id, Domain: "default", Owner: "activator-1",
		Allocation: allocation, Duration: lasts, Surplus: surplus, Want: want,
	}
}

var (
	epoch      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	allocation = api.Resources{CPUMilli: 1000, MemoryBytes: 512 << 20}
	unlimited  = api.Resources{CPUMilli: pool.MostVolume, MemoryBytes: pool.MostVolume}

	newRedis = pool.NewTestRedis
	openNode = pool.OpenNode
)

func trace(digit rune) string {
	return "00-" + strings.Repeat(string(digit), 32) + "-" + strings.Repeat(string(digit), 16) + "-01"
}

// scene is an open node. A call that fails makes the test fail.
type scene struct {
	*testing.T
	pool  pool.Pool
	clock *testingclock.FakePassiveClock
}

const sceneNode = "node-1.example"

func (s scene) begin(inv pool.Invocation) api.Resources {
	s.Helper()
	borrowed, err := s.pool.Begin(redistest.Context(s), sceneNode, inv)
	if err != nil {
		s.Fatal(err)
	}
	return borrowed
}

func (s scene) end(id string) pool.Outcome {
	s.Helper()
	outcome, err := s.pool.End(redistest.Context(s), sceneNode, pool.Ending{ID: id})
	if err != nil {
		s.Fatal(err)
	}
	return outcome
}

// scenePods take part from the start, and are at rest then.
var scenePods = []string{"default/a", "default/b", "default/c", "default/d", "default/long", "default/short"}

// open keeps the node open.
func (s scene) open() {
	s.Helper()
	s.heartbeat(unlimited, map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0, "short": 0, "long": 0})
}

// rest sends an open node's heartbeat that says that a pod is at rest.
func (s scene) rest(pod string) {
	s.Helper()
	s.restSince(pod, s.clock.Now())
}

func (s scene) restSince(pod string, at time.Time) {
	s.Helper()
	hb := pool.Heartbeat{
		Agent: "agent-1", Epoch: s.read().Epoch, Whole: true, Lendable: unlimited, Pods: map[string]int64{"default/a": 0, "default/b": 0},
		Rested: []string{pod}, RestedAt: at,
	}
	if open, err := s.pool.Heartbeat(redistest.Context(s), sceneNode, hb); err != nil || !open {
		s.Fatalf("the heartbeat opened the node: %t, %v", open, err)
	}
}

func (s scene) read() pool.State {
	s.Helper()
	state, err := s.pool.Read(redistest.Context(s), sceneNode)
	if err != nil {
		s.Fatal(err)
	}
	return state
}

func (s scene) renew(owner string) {
	s.Helper()
	if err := s.pool.Renew(redistest.Context(s), sceneNode, owner); err != nil {
		s.Fatal(err)
	}
}

func (s scene) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

// expect reads the state and compares its numbers. Pods are named by the
// invocations in them.
func (s scene) expect(begun int, available api.Resources, pods map[string]pool.Balance) {
	s.Helper()
	got := s.read()
	for pod, b := range got.Pods {
		b.Allocation = api.Resources{}
		got.Pods[pod] = b
	}
	want := pool.State{Pods: map[string]pool.Balance{}, Needs: map[string]int64{}, InFlight: map[string][]pool.Flight{}, Available: available, Begun: begun}
	for id, b := range pods {
		want.Pods["default/"+id] = b
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(pool.State{}, "Epoch", "Now", "Agent", "Open", "Suspended", "Unseen", "Raised")); diff != "" {
		s.Fatalf("state differs (-want +got):\n%s", diff)
	}
}

func (s scene) equal(want, got any) {
	s.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		s.Fatalf("differs (-want +got):\n%s", diff)
	}
}

type play struct {
	name string
	play func(s scene)
}

func TestScenes(t *testing.T) {
	scenes := []play{
		{"the longest-lasting donor lends first", func(s scene) {
			s.begin(invocation("short", 10*time.Second, cpu(400), cpu(0)))
			s.begin(invocation("long", 20*time.Second, cpu(300), cpu(0)))
			s.equal(cpu(500), s.begin(invocation("b", time.Second, cpu(0), cpu(500))))
			s.expect(3, cpu(200), map[string]pool.Balance{
				"long": {Lent: cpu(300)}, "short": {Lent: cpu(200)}, "b": {Borrowed: cpu(500)},
			})
		}},
		{"as much as there is, each resource by itself", func(s scene) {
			s.begin(invocation("a", time.Minute, api.Resources{CPUMilli: 100, MemoryBytes: 5 << 20}, api.Resources{}))
			s.equal(api.Resources{CPUMilli: 100, MemoryBytes: 2 << 20},
				s.begin(invocation("b", time.Minute, api.Resources{}, api.Resources{CPUMilli: 300, MemoryBytes: 2 << 20})))
			s.expect(2, api.Resources{MemoryBytes: 3 << 20}, map[string]pool.Balance{
				"a": {Lent: api.Resources{CPUMilli: 100, MemoryBytes: 2 << 20}},
				"b": {Borrowed: api.Resources{CPUMilli: 100, MemoryBytes: 2 << 20}},
			})
		}},
		{"one invocation lends one resource and borrows the other", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), api.Resources{}))
			s.begin(invocation("b", time.Minute, api.Resources{MemoryBytes: 1 << 20}, cpu(200)))
			s.begin(invocation("c", time.Minute, api.Resources{}, api.Resources{MemoryBytes: 1 << 20}))
			s.expect(3, cpu(100), map[string]pool.Balance{
				"a": {Lent: cpu(200)},
				"b": {Borrowed: cpu(200), Lent: api.Resources{MemoryBytes: 1 << 20}},
				"c": {Borrowed: api.Resources{MemoryBytes: 1 << 20}},
			})
		}},
		{"preemptive release: the donor ends", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
			s.equal(pool.Outcome{Found: true, Alone: true, Lent: cpu(300)}, s.end("a"))
			s.expect(1, cpu(0), nil)
			s.equal(pool.Outcome{Found: true, Alone: true, Borrowed: cpu(300)}, s.end("b"))
			s.expect(0, cpu(0), nil)
		}},
		{"re-harvest: the borrower ends, and the entry keeps its expiry", func(s scene) {
			s.begin(invocation("a", 10*time.Second, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
			s.pass(4 * time.Second)
			s.end("b")
			s.expect(1, cpu(300), nil)
			late := invocation("c", time.Minute, cpu(0), cpu(300))
			late.MinRemaining = 6*time.Second + time.Millisecond
			s.equal(cpu(0), s.begin(late))
			late.ID, late.MinRemaining = "d", 6*time.Second
			late.Pod = "default/d"
			s.equal(cpu(300), s.begin(late))
		}},
		{"a loan has the trace of the newest in it that is traced", func(s scene) {
			traced := func(id string, surplus, want api.Resources, with rune) {
				inv := invocation(id, time.Minute, surplus, want)
				if with != 0 {
					inv.Trace = trace(with)
				}
				s.begin(inv)
			}
			traced("a", cpu(300), cpu(0), 'a')
			traced("b", cpu(0), cpu(100), 0)
			s.expect(2, cpu(200), map[string]pool.Balance{
				"a": {Lent: cpu(100), Trace: trace('a')}, "b": {Borrowed: cpu(100), Trace: trace('a')},
			})
			traced("c", cpu(0), cpu(100), 'c')
			s.expect(3, cpu(100), map[string]pool.Balance{
				"a": {Lent: cpu(200), Trace: trace('c')},
				"b": {Borrowed: cpu(100), Trace: trace('a')}, "c": {Borrowed: cpu(100), Trace: trace('c')},
			})
			s.end("c")
			s.expect(2, cpu(200), map[string]pool.Balance{
				"a": {Lent: cpu(100), Trace: trace('a')}, "b": {Borrowed: cpu(100), Trace: trace('a')},
			})
			s.end("a")
			traced("d", cpu(300), cpu(0), 0)
			s.expect(2, cpu(200), map[string]pool.Balance{"d": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
		}},
		{"a borrower that began before there was enough gets the rest, the last to end first", func(s scene) {
			s.equal(cpu(0), s.begin(invocation("short", 10*time.Second, cpu(0), cpu(300))))
			s.begin(invocation("long", 20*time.Second, cpu(0), cpu(300)))
			s.begin(invocation("a", time.Minute, cpu(400), cpu(0)))
			s.expect(3, cpu(0), map[string]pool.Balance{
				"a": {Lent: cpu(400)}, "long": {Borrowed: cpu(300)}, "short": {Borrowed: cpu(100)},
			})
			s.end("long")
			s.expect(2, cpu(100), map[string]pool.Balance{"a": {Lent: cpu(300)}, "short": {Borrowed: cpu(300)}})
			s.equal(pool.Outcome{Found: true, Alone: true, Borrowed: cpu(300)}, s.end("short"))
		}},
		{"a borrower that loses a loan gets another", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
			s.begin(invocation("c", time.Minute, cpu(100), cpu(0)))
			s.end("a")
			s.expect(2, cpu(0), map[string]pool.Balance{"c": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
			s.begin(invocation("d", time.Minute, cpu(300), cpu(0)))
			s.expect(3, cpu(100), map[string]pool.Balance{
				"c": {Lent: cpu(100)}, "d": {Lent: cpu(200)}, "b": {Borrowed: cpu(300)},
			})
		}},
		{"a borrower gets no more when it, or the donor, is about to end", func(s scene) {
			hungry := invocation("b", 10*time.Second, cpu(0), cpu(300))
			hungry.MinRemaining = 8 * time.Second
			s.begin(hungry)
			s.begin(invocation("a", 7*time.Second, cpu(100), cpu(0)))
			s.pass(2*time.Second + time.Millisecond)
			s.begin(invocation("c", time.Minute, cpu(100), cpu(0)))
			s.expect(3, cpu(200), nil)
		}},
		{"a loan is worth what it takes off the time without it", func(s scene) {
			hungry := invocation("b", time.Second, cpu(0), cpu(300))
			hungry.WithoutLoan, hungry.MinRemaining = 4*time.Second, time.Second
			s.begin(hungry)
			s.pass(3 * time.Second)
			s.begin(invocation("a", time.Minute, cpu(100), cpu(0)))
			lent := map[string]pool.Balance{"a": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}}
			s.expect(2, cpu(0), lent)
			s.pass(time.Millisecond)
			s.begin(invocation("c", time.Minute, cpu(100), cpu(0)))
			s.expect(3, cpu(100), lent)
			s.pass(2*time.Second - 2*time.Millisecond)
			s.renew("activator-1")
			s.open()
			s.expect(3, cpu(100), lent)
			s.pass(time.Millisecond)
			s.open()
			s.expect(3, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(100)}, "c": {Lent: cpu(100)}, "b": {Borrowed: cpu(200)}})
		}},
		{"a donor lasts as long as it is predicted to with what it borrows", func(s scene) {
			both := invocation("a", time.Second, api.Resources{MemoryBytes: 1 << 20}, cpu(300))
			both.WithoutLoan = time.Minute
			s.begin(both)
			needs := invocation("b", time.Minute, cpu(0), api.Resources{MemoryBytes: 1 << 20})
			needs.MinRemaining = 2 * time.Second
			s.equal(cpu(0), s.begin(needs))
		}},
		{"a borrower that has outlived its prediction gets more", func(s scene) {
			hungry := invocation("b", time.Second, cpu(0), cpu(300))
			hungry.MinRemaining = 200 * time.Millisecond
			s.begin(hungry)
			s.pass(time.Second + 199*time.Millisecond)
			s.begin(invocation("a", time.Minute, cpu(100), cpu(0)))
			s.expect(2, cpu(100), nil)
			s.pass(time.Millisecond)
			s.begin(invocation("c", time.Minute, cpu(100), cpu(0)))
			s.expect(3, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(100)}, "c": {Lent: cpu(100)}, "b": {Borrowed: cpu(200)}})
		}},
		{"a borrower gets no more on a node that is closed", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
			s.begin(invocation("c", time.Minute, cpu(0), cpu(300)))
			s.pass(pool.LeaseTTL / 2)
			s.renew("activator-1")
			s.pass(pool.LeaseTTL / 2)
			s.end("b")
			s.expect(2, cpu(300), nil)
		}},
		{"an entry past its expiry is not lent, and grants outlive it", func(s scene) {
			s.begin(invocation("a", time.Second, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(100)))
			s.pass(time.Second)
			s.equal(cpu(0), s.begin(invocation("c", time.Minute, cpu(0), cpu(100))))
			s.expect(3, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
		}},
		{"nothing is lent to another domain", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			other := invocation("b", time.Minute, cpu(0), cpu(300))
			other.Domain = "tenant"
			s.equal(cpu(0), s.begin(other))
		}},
		{"a donor's pod lends nothing while a second invocation is in it", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(200)))
			second := invocation("a2", time.Minute, cpu(250), cpu(50))
			second.Pod = "default/a"
			s.equal(cpu(0), s.begin(second))
			s.expect(3, cpu(0), nil)
			s.equal(pool.Outcome{Found: true, Lent: cpu(200)}, s.end("a"))
			s.expect(2, cpu(50), map[string]pool.Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}})
			s.equal(pool.Outcome{Found: true, Lent: cpu(200)}, s.end("a2"))
			s.expect(1, cpu(0), nil)
		}},
		{"a closed node lends nothing", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.pass(pool.LeaseTTL / 2)
			s.renew("activator-1")
			s.pass(pool.LeaseTTL / 2)
			s.equal(cpu(0), s.begin(invocation("b", time.Minute, cpu(0), cpu(300))))
			s.begin(invocation("c", time.Minute, cpu(500), cpu(0)))
			s.expect(3, cpu(300), nil)
			s.open()
			s.expect(3, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
		}},
		{"an end that overtakes its begin", func(s scene) {
			s.equal(pool.Outcome{}, s.end("a"))
			s.pass(pool.LeaseTTL - time.Millisecond)
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(0, cpu(0), nil)
			for range 2 { // an End stands for up to two lease times
				s.pass(pool.LeaseTTL)
				s.open()
			}
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(1, cpu(300), nil)
		}},
		{"an end before the clock goes back", func(s scene) {
			s.pass(pool.LeaseTTL - time.Millisecond)
			s.equal(pool.Outcome{}, s.end("a"))
			s.pass(time.Millisecond)
			s.open()
			s.pass(-time.Millisecond)
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(0, cpu(0), nil)
		}},
		{"a begin that arrives again after its end", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.end("a")
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(0, cpu(0), nil)
		}},
		{"an end after which no begin can arrive", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			outcome, err := s.pool.End(redistest.Context(s), sceneNode, pool.Ending{ID: "a", BeginAnswered: true})
			if err != nil {
				s.Fatal(err)
			}
			s.equal(pool.Outcome{Found: true, Alone: true}, outcome)
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(1, cpu(300), nil)
		}},
		{"a lapsed lease returns everything, a renewed one stays", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			other := invocation("b", time.Minute, cpu(0), cpu(300))
			other.Owner = "activator-2"
			s.begin(other)
			s.pass(pool.LeaseTTL - time.Millisecond)
			s.renew("activator-2")
			s.expect(2, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
			s.pass(time.Millisecond)
			s.expect(1, cpu(0), nil)
			s.equal(pool.Outcome{}, s.end("a"))
			s.equal(pool.Outcome{Found: true, Alone: true, Borrowed: cpu(300)}, s.end("b"))
		}},
		{"a lease that ran out is not renewed for what began under it", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(100)))
			s.pass(pool.LeaseTTL)
			s.renew("activator-1")
			s.expect(0, cpu(0), nil)
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(0, cpu(0), nil)
		}},
		{"a begin after its owner's lease ran out ends what it had", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
			other := invocation("c", time.Minute, cpu(200), cpu(0))
			other.Owner = "activator-2"
			s.pass(pool.LeaseTTL - time.Millisecond)
			s.begin(other)
			s.pass(time.Millisecond)
			s.open()
			s.equal(cpu(200), s.begin(invocation("d", time.Minute, cpu(0), cpu(300))))
			s.expect(2, cpu(0), map[string]pool.Balance{"c": {Lent: cpu(200)}, "d": {Borrowed: cpu(200)}})
		}},
		{"what a lapsed borrower returns is there for the begin that finds it lapsed", func(s scene) {
			donor := invocation("a", time.Minute, cpu(300), cpu(0))
			donor.Owner = "activator-2"
			s.begin(donor)
			s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
			s.pass(pool.LeaseTTL - time.Millisecond)
			s.renew("activator-2")
			s.pass(time.Millisecond)
			s.open()
			s.equal(cpu(300), s.begin(invocation("c", time.Minute, cpu(0), cpu(300))))
		}},
		{"a late end", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			outcome, err := s.pool.End(redistest.Context(s), sceneNode, pool.Ending{ID: "a", Late: true})
			if err != nil {
				s.Fatal(err)
			}
			s.equal(pool.Outcome{Found: true}, outcome)
		}},
		{"a lease does not outlast a clock that goes back", func(s scene) {
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.pass(-time.Hour)
			s.expect(1, cpu(300), nil)
			s.pass(pool.LeaseTTL)
			s.expect(0, cpu(0), nil)
		}},
	}

	addr := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	run := func(tc play, opened bool) {
		t.Run(tc.name, func(t *testing.T) {
			clock := testingclock.NewFakePassiveClock(epoch)
			r := newRedis(t, addr)
			r.UseClock(clock)
			if err := client.FlushAll(redistest.Context(t)).Err(); err != nil {
				t.Fatal(err)
			}
			for name, p := range map[string]pool.Pool{"memory": pooltest.NewMemory(clock), "redis": r} {
				t.Run(name, func(t *testing.T) {
					clock.SetTime(epoch)
					s := scene{T: t, pool: p, clock: clock}
					if opened {
						openNode(s, s.pool, sceneNode, scenePods...)
					}
					tc.play(s)
				})
			}
		})
	}
	for _, tc := range slices.Concat(scenes, agentScenes, concurrencyScenes, rankedScenes, unseenScenes, fairScenes, idleScenes, askScenes) {
		run(tc, true)
	}
	for _, tc := range newEpochScenes {
		run(tc, false)
	}
}

func TestRefused(t *testing.T) {
	change := func(f func(*pool.Invocation)) pool.Invocation {
		inv := invocation("a", time.Minute, cpu(500), cpu(0))
		f(&inv)
		return inv
	}
	for _, tc := range []struct {
		name    string
		node    string
		inv     pool.Invocation
		wantErr string
	}{
		{"no id", "node", change(func(i *pool.Invocation) { i.ID = "" }), "ID"},
		{"newline in a pod", "node", change(func(i *pool.Invocation) { i.Pod = "a\nb" }), "Pod"},
		{"no domain", "node", change(func(i *pool.Invocation) { i.Domain = "" }), "Domain"},
		{"no owner", "node", change(func(i *pool.Invocation) { i.Owner = "" }), "Owner"},
		{"no function", "node", change(func(i *pool.Invocation) { i.Function = "" }), "Function"},
		{"name without end", "node", change(func(i *pool.Invocation) { i.Domain = strings.Repeat("a", pool.MaxName+1) }), "Domain"},
		{"negative allocation", "node", change(func(i *pool.Invocation) { i.Allocation.MemoryBytes = -1 }), "Allocation"},
		{"negative surplus", "node", change(func(i *pool.Invocation) { i.Surplus.CPUMilli = -1 }), "Surplus"},
		{"absurd want", "node", change(func(i *pool.Invocation) { i.Want.MemoryBytes = pool.MostVolume + 1 }), "Want"},
		{"absurd need", "node", change(func(i *pool.Invocation) { i.Need.CPUMilli = pool.MostVolume + 1 }), "Need"},
		{"negative concurrency", "node", change(func(i *pool.Invocation) { i.Concurrency = -1 }), "Concurrency"},
		{"negative duration", "node", change(func(i *pool.Invocation) { i.Duration = -1 }), "Duration"},
		{"negative duration without a loan", "node", change(func(i *pool.Invocation) { i.WithoutLoan = -1 }), "WithoutLoan"},
		{"negative CPU time", "node", change(func(i *pool.Invocation) { i.CPUTime = -1 }), "CPUTime"},
		{"negative remaining time", "node", change(func(i *pool.Invocation) { i.MinRemaining = -1 }), "MinRemaining"},
		{"trace without end", "node", change(func(i *pool.Invocation) { i.Trace = strings.Repeat("a", 56) }), "Trace"},
		{"no node", "", invocation("a", time.Minute, cpu(500), cpu(0)), "node"},
		{"node that ends the hash tag", "a}b", invocation("a", time.Minute, cpu(500), cpu(0)), "node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Refusing needs no Redis.
			for _, p := range []pool.Pool{pooltest.NewMemory(testingclock.NewFakePassiveClock(epoch)), newRedis(t, t.TempDir()+"/nobody.sock")} {
				_, err := p.Begin(redistest.Context(t), tc.node, tc.inv)
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("%T: got error %v, want one that names %s", p, err, tc.wantErr)
				}
			}
		})
	}
}

func TestHeartbeatOfBadNeeds(t *testing.T) {
	for _, hb := range []pool.Heartbeat{
		{Agent: "a", Needs: map[string]int64{"default/a\n": 1}},
		{Agent: "a", Needs: map[string]int64{"default/a": -1}},
	} {
		for _, p := range []pool.Pool{pooltest.NewMemory(nil), newRedis(t, t.TempDir()+"/nobody.sock")} {
			if _, err := p.Heartbeat(t.Context(), "node", hb); err == nil || !strings.Contains(err.Error(), "Needs") {
				t.Errorf("%T: heartbeat %+v: got error %v, want one that names Needs", p, hb, err)
			}
		}
	}
}
