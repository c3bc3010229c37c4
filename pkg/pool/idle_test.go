package pool_test

import (
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

// idling returns an invocation whose pod lends milli once it has ended.
func idling(id string, milli int64) pool.Invocation {
	inv := invocation(id, time.Second, cpu(0), cpu(0))
	inv.IdleCPUMilli = milli
	return inv
}

// idleScenes are about pods that lend while nothing is in flight in them.
var idleScenes = []play{
	{"a pod lends on between two invocations", func(s scene) {
		s.begin(idling("a", 300))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(500)))
		s.expect(2, cpu(0), nil)
		s.end("a")
		s.expect(1, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(300), Idle: true}, "b": {Borrowed: cpu(300)}})
		next := idling("a2", 300)
		next.Pod = "default/a"
		s.begin(next)
		s.expect(2, cpu(0), nil)
	}},
	{"what the next invocation spares stays on loan", func(s scene) {
		s.begin(idling("a", 300))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(500)))
		s.end("a")
		next := invocation("a2", time.Minute, cpu(200), cpu(0))
		next.Pod = "default/a"
		s.begin(next)
		s.expect(2, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}})
		s.equal(pool.Outcome{Found: true, Alone: true, Lent: cpu(200)}, s.end("a2"))
	}},
	{"what a donor lends stays on loan when it ends", func(s scene) {
		a := invocation("a", time.Second, cpu(200), cpu(0))
		a.IdleCPUMilli = 300
		s.begin(a)
		s.begin(invocation("b", time.Second, cpu(0), cpu(250)))
		s.expect(2, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}})
		s.end("a")
		s.expect(1, cpu(50), map[string]pool.Balance{"a": {Lent: cpu(250), Idle: true}, "b": {Borrowed: cpu(250)}})
		s.end("b")
		s.expect(0, cpu(300), nil)
	}},
	{"an idle donor keeps something", func(s scene) {
		s.begin(idling("a", 1<<30))
		s.end("a")
		s.expect(0, cpu(999), nil)
	}},
	{"a pod is not idle while another is in it, and after one that ends late", func(s scene) {
		a, b := idling("a", 300), idling("b", 300)
		a.Concurrency, b.Concurrency, b.Pod = 2, 2, a.Pod
		s.begin(a)
		s.begin(b)
		s.end("a")
		s.expect(1, cpu(0), nil)
		if _, err := s.pool.End(redistest.Context(s), sceneNode, pool.Ending{ID: "b", Late: true}); err != nil {
			s.Fatal(err)
		}
		s.expect(0, cpu(0), nil)
	}},
	{"a pod in which there may be others is not lent of, and is when that is over", func(s scene) {
		lost := idling("lost", 300)
		lost.Pod, lost.Owner = "default/a", "activator-2"
		s.begin(lost)
		s.pass(pool.LeaseTTL)
		s.open()
		s.begin(idling("a", 300))
		s.end("a")
		s.expect(0, cpu(0), nil)
		s.rest("default/a")
		s.expect(0, cpu(300), nil)
	}},
	{"an idle donor lasts as long as its owner's lease", func(s scene) {
		s.begin(idling("a", 300))
		other := invocation("b", time.Hour, cpu(0), cpu(500))
		other.Owner = "activator-2"
		s.begin(other)
		s.end("a")
		for range 5 {
			s.pass(pool.LeaseTTL / 2)
			s.open()
			s.renew("activator-1")
			s.renew("activator-2")
		}
		s.expect(1, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(300), Idle: true}, "b": {Borrowed: cpu(300)}})
		for range 2 {
			s.pass(pool.LeaseTTL / 2)
			s.open()
			s.renew("activator-2")
		}
		s.expect(1, cpu(0), nil)
	}},
	{"who begins to borrow is lent of a pod that has idled for less than IdleMost", func(s scene) {
		s.begin(idling("a", 300))
		s.end("a")
		s.pass(pool.IdleMost - time.Second)
		s.open()
		s.begin(invocation("b", time.Second, cpu(0), cpu(100)))
		s.expect(1, cpu(0), nil) // the owner's lease has expired
		s.end("b")
		s.begin(idling("a", 300))
		s.end("a")
		for range pool.IdleMost / time.Second {
			s.pass(time.Second)
			s.renew("activator-1")
		}
		s.open()
		s.begin(invocation("c", time.Second, cpu(0), cpu(100)))
		s.expect(1, cpu(0), nil)
	}},
	{"an idle pod that takes part no more lends no more", func(s scene) {
		s.begin(idling("a", 300))
		s.end("a")
		s.heartbeat(unlimited, map[string]int64{"b": 0})
		s.expect(0, cpu(0), nil)
		s.heartbeat(unlimited, map[string]int64{"a": 0, "b": 0})
		s.expect(0, cpu(0), nil)
	}},
	{"the safeguard of an idle pod suspends its function's idle pods, and no others", func(s scene) {
		s.begin(idling("a", 300))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(200)))
		s.end("a")
		s.equal(int64(0), s.safeguardSeen("a", false)) // for what it used before
		s.equal(int64(200), s.safeguardSeen("a", true))
		s.expect(1, cpu(0), nil)
		s.equal([]pool.Suspension{{Function: "default/f-00001", Idle: true, Until: s.clock.Now().Add(pool.SuspendLeast).Local()}}, s.read().Suspended)
		next := idling("a2", 300)
		next.Pod, next.Surplus = "default/a", cpu(100)
		s.begin(next)
		s.equal(int64(0), s.safeguardSeen("a", true))
		s.expect(2, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
		s.end("a2")
		s.expect(1, cpu(0), nil)
		s.pass(pool.SuspendLeast)
		s.open()
		next = idling("a3", 300)
		next.Pod = "default/a"
		s.begin(next)
		s.end("a3")
		s.expect(0, cpu(300), nil)
	}},
	{"the safeguard of a pod in flight suspends its function's pods in flight, and no idle ones", func(s scene) {
		lends := idling("a", 300)
		lends.Surplus = cpu(100)
		s.begin(lends)
		s.equal(int64(0), s.safeguardSeen("a", false))
		s.expect(1, cpu(0), nil)
		s.end("a")
		s.expect(0, cpu(300), nil)
	}},
	{"the safeguard does not hold what a pod used before its next invocation against that", func(s scene) {
		s.begin(idling("a", 300))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(200)))
		s.end("a")
		next := invocation("a2", time.Minute, cpu(300), cpu(0))
		next.Pod = "default/a"
		s.begin(next)
		s.equal(int64(0), s.safeguardSeen("a", true))
		s.expect(2, cpu(100), map[string]pool.Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}})
	}},
	{"nothing is lent of an idle pod on a node that does not lend", func(s scene) {
		s.begin(idling("a", 300))
		s.pass(pool.LeaseTTL - time.Millisecond)
		s.renew("activator-1")
		s.pass(time.Millisecond)
		s.end("a")
		s.open()
		s.equal(api.Resources{}, s.read().Available)
	}},
}
