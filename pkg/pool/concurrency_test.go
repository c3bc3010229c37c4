package pool_test

import (
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// shared is an invocation in a pod of its function that takes three at a time.
func shared(id, pod string, lasts time.Duration, need api.Resources) pool.Invocation {
	inv := invocation(id, lasts, allocation.Sub(need), api.Resources{})
	inv.Pod, inv.Concurrency, inv.Need = "default/"+pod, 3, need
	return inv
}

func need(cpuMilli, memoryMiB int64) api.Resources {
	return api.Resources{CPUMilli: cpuMilli, MemoryBytes: memoryMiB << 20}
}

// concurrencyScenes are about pods that take several invocations at one time.
var concurrencyScenes = []play{
	{"what those in a pod do not need together is lent", func(s scene) {
		s.begin(shared("a1", "a", 10*time.Second, need(300, 128)))
		s.expect(1, need(700, 384), nil)
		s.begin(shared("a2", "a", time.Minute, need(200, 64)))
		s.expect(2, need(500, 320), nil)
		s.begin(shared("a3", "a", time.Second, need(100, 200)))
		s.expect(3, need(400, 120), nil)
		s.equal(pool.Outcome{Found: true}, s.end("a1"))
		s.expect(2, need(700, 248), nil)
		s.end("a2")
		s.expect(1, need(900, 312), nil)
		s.end("a3")
		s.expect(0, cpu(0), nil)
	}},
	{"one more than a pod takes, and it lends nothing while they are so many", func(s scene) {
		for _, id := range []string{"a1", "a2", "a3"} {
			s.begin(shared(id, "a", time.Minute, need(100, 64)))
		}
		s.begin(invocation("b", time.Minute, cpu(0), cpu(600)))
		s.expect(4, need(100, 320), map[string]pool.Balance{"a": {Lent: cpu(600)}, "b": {Borrowed: cpu(600)}})
		s.begin(shared("a4", "a", time.Minute, need(100, 64)))
		s.expect(5, cpu(0), nil)
		s.end("a1")
		s.expect(4, need(100, 320), map[string]pool.Balance{"a": {Lent: cpu(600)}, "b": {Borrowed: cpu(600)}})
	}},
	{"another in a pod takes back what it needs, from the borrower that is the first to end", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		s.equal(cpu(400), s.begin(invocation("long", time.Minute, cpu(0), cpu(400))))
		s.equal(cpu(200), s.begin(invocation("short", time.Second, cpu(0), cpu(200))))
		s.begin(shared("a2", "a", time.Minute, need(200, 64)))
		s.expect(4, need(0, 384), map[string]pool.Balance{
			"a": {Lent: cpu(500)}, "long": {Borrowed: cpu(400)}, "short": {Borrowed: cpu(100)},
		})
		s.begin(shared("a3", "a", time.Minute, need(400, 64)))
		s.expect(5, need(0, 320), map[string]pool.Balance{"a": {Lent: cpu(100)}, "long": {Borrowed: cpu(100)}})
		s.end("a1")
		s.expect(4, need(0, 384), map[string]pool.Balance{"a": {Lent: cpu(400)}, "long": {Borrowed: cpu(400)}})
	}},
	{"of many borrowers, too, the first to end lose first", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		for id, seconds := range map[string]int{"b": 30, "c": 10, "d": 40, "long": 50, "short": 1} {
			s.begin(invocation(id, time.Duration(seconds)*time.Second, cpu(0), cpu(100)))
		}
		s.begin(shared("a2", "a", time.Minute, need(400, 64)))
		s.expect(7, need(0, 384), map[string]pool.Balance{
			"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(100)}, "d": {Borrowed: cpu(100)}, "long": {Borrowed: cpu(100)},
		})
	}},
	{"who lost a part of a loan gets it from another pod", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(700)))
		s.begin(invocation("c", time.Minute, cpu(150), cpu(0)))
		s.begin(shared("a2", "a", time.Minute, need(200, 64)))
		s.expect(4, need(0, 384), map[string]pool.Balance{
			"a": {Lent: cpu(500)}, "c": {Lent: cpu(150)}, "b": {Borrowed: cpu(650)},
		})
		s.equal(pool.Outcome{Found: true, Lent: cpu(500)}, s.end("a2"))
	}},
	{"while it is not known what one needs, the pod lends nothing", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		unknown := shared("a2", "a", 0, cpu(0))
		unknown.Surplus = api.Resources{}
		s.begin(unknown)
		s.expect(2, cpu(0), nil)
		half := shared("a3", "a", time.Minute, cpu(100))
		half.Surplus.MemoryBytes = 64 << 20
		s.begin(half)
		s.end("a2")
		s.expect(2, cpu(600), nil)
		s.end("a3")
		s.expect(1, need(700, 448), nil)
	}},
	{"of one in a pod counts what it can spare, which bounds may make less than what it does not need", func(s scene) {
		a1, a2 := shared("a1", "a", time.Minute, need(100, 64)), shared("a2", "a", time.Minute, need(100, 64))
		a1.Surplus, a2.Surplus = cpu(600), cpu(600)
		s.begin(a1)
		s.expect(1, cpu(600), nil)
		s.begin(a2)
		s.expect(2, cpu(600), nil)
	}},
	{"what a pod lends lasts as long as the last in it", func(s scene) {
		s.begin(shared("a1", "a", 10*time.Second, need(300, 64)))
		s.begin(shared("a2", "a", 20*time.Second, need(300, 64)))
		s.expect(2, need(400, 384), nil)
		borrow := func(id string, lasts time.Duration) api.Resources {
			s.Helper()
			inv := invocation(id, time.Minute, cpu(0), cpu(100))
			inv.MinRemaining = lasts
			return s.begin(inv)
		}
		s.equal(cpu(0), borrow("b", 20*time.Second+time.Millisecond))
		s.equal(cpu(100), borrow("c", 20*time.Second))
		s.end("a2")
		s.expect(3, need(600, 448), map[string]pool.Balance{"a": {Lent: cpu(100)}, "c": {Borrowed: cpu(100)}})
		s.equal(cpu(0), borrow("long", 10*time.Second+time.Millisecond))
		s.equal(cpu(100), borrow("short", 10*time.Second))
	}},
	{"the safeguard takes back what all in a pod lend, for as long as one of them is in it", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		s.begin(shared("a2", "a", time.Minute, need(200, 64)))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(400)))
		s.equal(int64(400), s.safeguard("a"))
		s.expect(3, need(0, 384), nil)
		s.equal(pool.Outcome{Found: true, Safeguarded: true, Lent: cpu(400)}, s.end("a1"))
		s.expect(2, need(0, 448), nil)
		for range int(pool.SuspendLeast / time.Second) {
			s.pass(time.Second)
			s.renew("activator-1")
			s.open()
		}
		s.begin(shared("a3", "a", time.Minute, need(100, 64)))
		s.expect(3, need(0, 384), nil)
		s.equal(pool.Outcome{Found: true, Safeguarded: true, Lent: cpu(400)}, s.end("a2"))
		s.expect(2, need(500, 448), map[string]pool.Balance{"a": {Lent: cpu(400)}, "b": {Borrowed: cpu(400)}})
	}},
	{"what those leave who lapsed may still be needed", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		other := shared("a2", "a", time.Minute, need(300, 64))
		other.Owner = "activator-2"
		s.begin(other)
		s.pass(pool.LeaseTTL / 2)
		s.renew("activator-2")
		s.pass(pool.LeaseTTL / 2)
		s.open()
		s.expect(1, cpu(0), nil)
		third := shared("a3", "a", time.Minute, need(300, 64))
		third.Owner = "activator-2"
		s.begin(third)
		s.expect(2, cpu(0), nil)
		s.equal(pool.Outcome{Found: true}, s.end("a2"))
		s.expect(1, cpu(0), nil)
		s.begin(shared("a4", "a", time.Minute, need(300, 64)))
		s.expect(2, need(400, 384), nil)
	}},
	{"a pod with several in it keeps its memory floor", func(s scene) {
		s.begin(shared("a1", "a", time.Minute, need(300, 64)))
		s.heartbeat(unlimited, map[string]int64{"a": 300 << 20, "b": 0})
		s.expect(1, need(700, 212), nil)
		s.begin(shared("a2", "a", time.Minute, need(300, 64)))
		s.expect(2, need(400, 212), nil)
		s.equal(need(0, 100), s.begin(invocation("b", time.Minute, cpu(0), need(0, 100))))
		s.heartbeat(unlimited, map[string]int64{"a": 413 << 20, "b": 0})
		short := map[string]pool.Balance{"b": {Short: 100 << 20}}
		s.expect(3, need(400, 0), short)
		s.end("a2")
		s.expect(2, need(700, 0), short)
	}},
	{"one in a pod borrows what it needs above what the pod is owed", func(s scene) {
		s.begin(invocation("c", time.Minute, cpu(500), cpu(0)))
		big := shared("b1", "b", time.Minute, cpu(1000))
		big.Surplus, big.Want = api.Resources{MemoryBytes: 384 << 20}, cpu(300)
		s.equal(cpu(300), s.begin(big))
		s.begin(shared("b2", "b", time.Minute, need(300, 64)))
		s.expect(3, cpu(200), map[string]pool.Balance{"c": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
		s.end("b1")
		s.expect(2, need(1200, 448), nil)
	}},
}
