package pool_test

import (
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

// heartbeat opens the node for the pods named, each with its floor.
func (s scene) heartbeat(lendable api.Resources, floors map[string]int64) {
	s.Helper()
	hb := pool.Heartbeat{Agent: "agent-1", Epoch: s.read().Epoch, Whole: true, Lendable: lendable, Pods: map[string]int64{}}
	for id, floor := range floors {
		hb.Pods["default/"+id] = floor
	}
	if open, err := s.pool.Heartbeat(redistest.Context(s), sceneNode, hb); err != nil || !open {
		s.Fatalf("the heartbeat opened the node: %t, %v", open, err)
	}
}

func (s scene) safeguard(id string) (revokedMilli int64) {
	s.Helper()
	return s.safeguardSeen(id, false)
}

func (s scene) safeguardSeen(id string, idle bool) (revokedMilli int64) {
	s.Helper()
	revokedMilli, err := s.pool.Safeguard(redistest.Context(s), sceneNode, "default/"+id, idle)
	if err != nil {
		s.Fatal(err)
	}
	return revokedMilli
}

// agentScenes are about what a node's agent tells the pool.
var agentScenes = []play{
	{"no more is on loan than may be, whatever is in the pool", func(s scene) {
		s.heartbeat(cpu(250), map[string]int64{"a": 0, "b": 0, "c": 0})
		s.begin(invocation("a", time.Minute, cpu(500), cpu(0)))
		s.equal(cpu(200), s.begin(invocation("b", time.Minute, cpu(0), cpu(200))))
		s.equal(cpu(50), s.begin(invocation("c", time.Minute, cpu(0), cpu(200))))
		s.heartbeat(cpu(100), map[string]int64{"a": 0, "b": 0, "c": 0})
		s.expect(3, cpu(250), map[string]pool.Balance{"a": {Lent: cpu(250)}, "b": {Borrowed: cpu(200)}, "c": {Borrowed: cpu(50)}})
		s.end("b")
		s.expect(2, cpu(400), map[string]pool.Balance{"a": {Lent: cpu(100)}, "c": {Borrowed: cpu(100)}})
		s.heartbeat(cpu(150), map[string]int64{"a": 0, "b": 0, "c": 0})
		s.expect(2, cpu(350), map[string]pool.Balance{"a": {Lent: cpu(150)}, "c": {Borrowed: cpu(150)}})
	}},
	{"a pod that takes no part neither lends nor borrows", func(s scene) {
		s.heartbeat(unlimited, map[string]int64{"b": 0, "c": 0})
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(300)))
		s.expect(2, cpu(0), nil)
		s.begin(invocation("c", time.Minute, cpu(300), cpu(0)))
		s.heartbeat(unlimited, map[string]int64{"c": 0})
		s.expect(3, cpu(300), nil)
		s.heartbeat(unlimited, map[string]int64{"b": 0, "c": 0})
		s.expect(3, cpu(0), map[string]pool.Balance{"b": {Borrowed: cpu(300)}, "c": {Lent: cpu(300)}})
		s.heartbeat(unlimited, map[string]int64{"b": 0})
		s.expect(3, cpu(0), nil)
	}},
	{"a pod keeps its memory floor", func(s scene) {
		memory := func(mib int64) api.Resources { return api.Resources{MemoryBytes: mib << 20} }
		s.heartbeat(unlimited, map[string]int64{"a": 300 << 20, "b": 0})
		s.begin(invocation("a", time.Minute, memory(400), cpu(0)))
		s.expect(1, memory(212), nil)
		s.equal(memory(100), s.begin(invocation("b", time.Minute, cpu(0), memory(100))))
		s.heartbeat(unlimited, map[string]int64{"a": 400 << 20, "b": 0})
		s.expect(2, memory(12), map[string]pool.Balance{"a": {Lent: memory(100)}, "b": {Borrowed: memory(100)}})
		s.heartbeat(unlimited, map[string]int64{"a": 413 << 20, "b": 0})
		s.expect(2, memory(0), map[string]pool.Balance{"b": {Short: 100 << 20}})
	}},
	{"the safeguard takes back the CPU, and the borrower gets another loan", func(s scene) {
		both := api.Resources{CPUMilli: 300, MemoryBytes: 64 << 20}
		s.begin(invocation("a", time.Minute, both, cpu(0)))
		other := invocation("c", time.Minute, cpu(100), cpu(0))
		other.Function = "default/g-00001"
		s.begin(invocation("b", time.Minute, cpu(0), both))
		s.begin(other)
		s.equal(int64(300), s.safeguard("a"))
		s.expect(3, cpu(0), map[string]pool.Balance{
			"a": {Lent: api.Resources{MemoryBytes: 64 << 20}}, "c": {Lent: cpu(100)},
			"b": {Borrowed: api.Resources{CPUMilli: 100, MemoryBytes: 64 << 20}},
		})
		s.equal(int64(0), s.safeguard("a"))
		s.equal(int64(0), s.safeguard("b"))
		s.equal([]pool.Suspension{{Function: "default/f-00001", Until: s.clock.Now().Add(pool.SuspendLeast).Local()}}, s.read().Suspended)
		s.equal(pool.Outcome{Found: true, Alone: true, Safeguarded: true, Lent: both}, s.end("a"))
		s.begin(invocation("d", time.Minute, both, cpu(0)))
		s.expect(3, cpu(0), map[string]pool.Balance{
			"d": {Lent: api.Resources{MemoryBytes: 64 << 20}}, "c": {Lent: cpu(100)},
			"b": {Borrowed: api.Resources{CPUMilli: 100, MemoryBytes: 64 << 20}},
		})
	}},
	{"a function's suspension doubles with each strike, and is forgotten", func(s scene) {
		strike := func() time.Duration {
			s.Helper()
			s.open()
			s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
			s.expect(1, cpu(300), nil)
			s.safeguard("a")
			s.end("a")
			s.pass(pool.LeaseTTL) // so that the Begin after this is not taken for a late one
			return s.read().Suspended[0].Until.Sub(s.clock.Now()) + pool.LeaseTTL
		}
		for _, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
			got := strike()
			s.equal(want*time.Second, got)
			s.pass(got - pool.LeaseTTL)
		}
		s.pass(pool.SuspendMost - time.Millisecond)
		s.equal(pool.SuspendMost, strike())
		s.pass(2*pool.SuspendMost - pool.LeaseTTL)
		s.equal(pool.SuspendLeast, strike())
	}},
	{"what is left to lend is that of all domains, as long as each lasts", func(s scene) {
		s.begin(invocation("a", time.Second, cpu(300), cpu(0)))
		longer := invocation("b", 2*time.Second, api.Resources{CPUMilli: 200, MemoryBytes: 1 << 20}, cpu(0))
		longer.Domain = "tenant"
		s.begin(longer)
		s.expect(2, longer.Surplus.Add(cpu(300)), nil)
		s.pass(time.Second)
		s.expect(2, longer.Surplus, nil)
		s.pass(time.Second)
		s.expect(2, cpu(0), nil)
	}},
	{"an agent is one whose heartbeat came lately", func(s scene) {
		s.equal([]any{"agent-1", true}, []any{s.read().Agent, s.read().Open})
		s.pass(pool.LeaseTTL)
		s.equal([]any{"", false}, []any{s.read().Agent, s.read().Open})
		for _, hb := range []pool.Heartbeat{
			{Agent: "agent-2", Epoch: s.read().Epoch},
			{Agent: "agent-2", Epoch: "another", Whole: true},
			{Agent: "agent-2", Whole: true},
		} {
			open, err := s.pool.Heartbeat(redistest.Context(s), sceneNode, hb)
			if err != nil {
				s.Fatal(err)
			}
			s.equal([]any{"agent-2", false, false}, []any{s.read().Agent, s.read().Open, open})
		}
	}},
	{"a state says what is wanted of memory and not lent", func(s scene) {
		memory := func(mib int64) api.Resources { return api.Resources{MemoryBytes: mib << 20} }
		s.begin(invocation("a", time.Minute, cpu(0), memory(300)))
		s.expect(1, cpu(0), map[string]pool.Balance{"a": {Short: 300 << 20}})
		s.begin(invocation("b", time.Minute, memory(100), cpu(0)))
		s.expect(2, cpu(0), map[string]pool.Balance{"a": {Borrowed: memory(100), Short: 200 << 20}, "b": {Lent: memory(100)}})
		s.end("b")
		s.expect(1, cpu(0), map[string]pool.Balance{"a": {Short: 300 << 20}})
		s.begin(invocation("c", time.Minute, cpu(0), cpu(300))) // nobody can make CPU
		s.expect(2, cpu(0), map[string]pool.Balance{"a": {Short: 300 << 20}})
		s.end("a")
		s.expect(1, cpu(0), nil)
	}},
	{"a state says what pods need, as long as the agent is heard", func(s scene) {
		needs := map[string]int64{"default/a": 300 << 20, "default/b": 1 << 30}
		for _, want := range []map[string]int64{needs, {"default/a": 1}, {}, needs} {
			if _, err := s.pool.Heartbeat(redistest.Context(s), sceneNode, pool.Heartbeat{Agent: "agent-1", Needs: want}); err != nil {
				s.Fatal(err)
			}
			s.equal(want, s.read().Needs)
		}
		s.pass(pool.LeaseTTL - time.Millisecond)
		s.equal(needs, s.read().Needs)
		s.pass(time.Millisecond)
		s.equal(map[string]int64{}, s.read().Needs)
	}},
	{"a state says which pods have borrowed CPU since the last heartbeat", func(s scene) {
		memory := api.Resources{MemoryBytes: 1 << 20}
		s.begin(invocation("a", time.Minute, unlimited, cpu(0)))
		s.equal([]string(nil), s.read().Raised)
		for _, inv := range []pool.Invocation{
			invocation("b", time.Minute, cpu(0), cpu(100)), invocation("c", time.Minute, cpu(0), cpu(100)), invocation("d", time.Minute, cpu(0), memory),
		} {
			s.begin(inv)
		}
		s.equal([]string{"default/b", "default/c"}, s.read().Raised)
		s.end("b")
		s.pass(time.Second)
		s.equal([]string{"default/b", "default/c"}, s.read().Raised)
		s.open()
		s.equal([]string{"default/c"}, s.read().Raised)
		s.safeguard("a")
		s.equal([]string{"default/c"}, s.read().Raised)
		s.open()
		s.equal([]string(nil), s.read().Raised)
	}},
	{"a balance says what its pod is owed", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(100)))
		bigger := invocation("b2", time.Minute, cpu(0), cpu(100))
		bigger.Pod, bigger.Allocation = "default/b", cpu(2000)
		s.begin(bigger)
		s.equal(map[string]pool.Balance{
			"default/a": {Lent: cpu(200), Allocation: allocation}, "default/b": {Borrowed: cpu(200), Allocation: cpu(2000)},
		}, s.read().Pods)
	}},
}
