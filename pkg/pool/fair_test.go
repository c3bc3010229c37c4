package pool_test

import (
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// of puts an invocation in a domain.
func of(domain string, inv pool.Invocation) pool.Invocation {
	inv.Domain = domain
	return inv
}

// fairScenes are about several domains that share what may be on loan on a node.
var fairScenes = []play{
	{"a domain that has more than its part takes no more while another wants some", func(s scene) {
		pods := map[string]int64{"a": 0, "a1": 0, "a2": 0, "z": 0, "z1": 0}
		s.heartbeat(cpu(600), pods)
		s.begin(of("a", invocation("a", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(300), s.begin(of("a", invocation("a1", time.Hour, cpu(0), cpu(300)))))
		s.equal(cpu(300), s.begin(of("a", invocation("a2", time.Hour, cpu(0), cpu(600)))))
		s.begin(of("z", invocation("z", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(0), s.begin(of("z", invocation("z1", time.Hour, cpu(0), cpu(200)))))
		s.end("a1")
		s.expect(4, cpu(1500), map[string]pool.Balance{"a": {Lent: cpu(300)}, "a2": {Borrowed: cpu(300)}})
		s.heartbeat(cpu(600), pods)
		// Once z has what it wants, the rest is for a.
		s.expect(4, cpu(1200), map[string]pool.Balance{
			"a": {Lent: cpu(400)}, "a2": {Borrowed: cpu(400)}, "z": {Lent: cpu(200)}, "z1": {Borrowed: cpu(200)},
		})
	}},
	{"a want that there is no surplus for keeps nothing from others", func(s scene) {
		s.heartbeat(cpu(600), map[string]int64{"a": 0, "a1": 0, "z": 0, "z1": 0})
		s.equal(cpu(0), s.begin(of("z", invocation("z1", time.Hour, cpu(0), cpu(600)))))
		s.begin(of("a", invocation("a", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(600), s.begin(of("a", invocation("a1", time.Hour, cpu(0), cpu(600)))))
	}},
	{"a domain that has all leaves others their part", func(s scene) {
		pods := map[string]int64{"x": 0, "x1": 0, "x2": 0, "y": 0, "y1": 0, "z": 0, "z1": 0}
		s.heartbeat(cpu(900), pods)
		s.begin(of("x", invocation("x", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(450), s.begin(of("x", invocation("x1", time.Hour, cpu(0), cpu(450)))))
		s.equal(cpu(450), s.begin(of("x", invocation("x2", time.Minute, cpu(0), cpu(450)))))
		s.begin(of("y", invocation("y", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(0), s.begin(of("y", invocation("y1", time.Hour, cpu(0), cpu(900)))))
		s.begin(of("z", invocation("z", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(0), s.begin(of("z", invocation("z1", time.Hour, cpu(0), cpu(100)))))
		s.heartbeat(cpu(900), pods)
		// z wants less than its part, and x2 is the first to end.
		s.expect(7, cpu(1800), map[string]pool.Balance{
			"x": {Lent: cpu(400)}, "x1": {Borrowed: cpu(400)}, "y": {Lent: cpu(400)}, "y1": {Borrowed: cpu(400)},
			"z": {Lent: cpu(100)}, "z1": {Borrowed: cpu(100)},
		})
		s.end("y1")
		s.expect(6, cpu(2200), map[string]pool.Balance{
			"x": {Lent: cpu(400)}, "x1": {Borrowed: cpu(400)}, "z": {Lent: cpu(100)}, "z1": {Borrowed: cpu(100)},
		})
		s.heartbeat(cpu(900), pods)
		s.expect(6, cpu(1800), map[string]pool.Balance{
			"x": {Lent: cpu(800)}, "x1": {Borrowed: cpu(450)}, "x2": {Borrowed: cpu(350)}, "z": {Lent: cpu(100)}, "z1": {Borrowed: cpu(100)},
		})
	}},
	{"a domain keeps what others want and have nobody to borrow from, or have room for", func(s scene) {
		pods := map[string]int64{"x": 0, "x1": 0, "y": 0, "y1": 0}
		s.heartbeat(cpu(900), pods)
		s.begin(of("x", invocation("x", time.Hour, cpu(900), cpu(0))))
		s.equal(cpu(700), s.begin(of("x", invocation("x1", time.Hour, cpu(0), cpu(700)))))
		s.equal(cpu(0), s.begin(of("y", invocation("y1", time.Hour, cpu(0), cpu(200)))))
		s.heartbeat(cpu(900), pods)
		s.expect(3, cpu(200), map[string]pool.Balance{"x": {Lent: cpu(700)}, "x1": {Borrowed: cpu(700)}})
		s.begin(of("y", invocation("y", time.Hour, cpu(900), cpu(0))))
		s.heartbeat(cpu(1200), pods)
		s.expect(4, cpu(900), map[string]pool.Balance{
			"x": {Lent: cpu(700)}, "x1": {Borrowed: cpu(700)}, "y": {Lent: cpu(200)}, "y1": {Borrowed: cpu(200)},
		})
	}},
	{"what a pod leaves at an end goes to others of the domain in which it lends by now", func(s scene) {
		s.begin(shared("a", "a", time.Hour, need(500, 256)))
		s.begin(of("other", shared("a2", "a", time.Hour, need(500, 256))))
		s.begin(of("other", invocation("b", time.Hour, cpu(0), cpu(300))))
		s.expect(3, cpu(0), nil)
		s.end("a")
		s.expect(2, need(200, 256), map[string]pool.Balance{"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
	}},
	{"who loses what a pod has lent, because one of another domain lapses there, gets it of others", func(s scene) {
		first := shared("a", "a", time.Hour, need(300, 64))
		first.Owner = "activator-2"
		s.begin(first)
		s.begin(of("other", shared("a2", "a", time.Hour, need(300, 64))))
		s.equal(cpu(300), s.begin(of("other", invocation("b", time.Hour, cpu(0), cpu(300)))))
		s.begin(of("other", invocation("d", time.Hour, cpu(300), cpu(0))))
		s.pass(pool.LeaseTTL - time.Millisecond)
		s.renew("activator-1")
		s.open()
		s.pass(time.Millisecond)
		s.expect(3, cpu(0), map[string]pool.Balance{"d": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
	}},
	{"memory stays, and domains take turns at what is not enough for all", func(s scene) {
		bytes := func(n int64) api.Resources { return api.Resources{MemoryBytes: n} }
		pods := map[string]int64{"x": 0, "x1": 0, "y": 0, "y1": 0, "z": 0, "z1": 0}
		s.heartbeat(bytes(900), pods)
		s.begin(of("x", invocation("x", time.Hour, bytes(900), cpu(0))))
		s.equal(bytes(900), s.begin(of("x", invocation("x1", time.Hour, cpu(0), bytes(900)))))
		for _, domain := range []string{"y", "z"} {
			s.begin(of(domain, invocation(domain, time.Hour, bytes(900), cpu(0))))
			s.equal(cpu(0), s.begin(of(domain, invocation(domain+"1", time.Hour, cpu(0), bytes(300)))))
		}
		lent := map[string]int64{}
		for i := range int64(4) {
			s.heartbeat(bytes(1000+100*i), pods)
			state := s.read()
			s.equal(int64(900), state.Pods["default/x"].Lent.MemoryBytes)
			for _, domain := range []string{"y", "z"} {
				if now := state.Pods["default/"+domain].Lent.MemoryBytes; now > lent[domain] {
					lent[domain] = now
				}
			}
			if i%2 == 1 && lent["y"] != lent["z"] {
				s.Fatalf("after %d heartbeats y has %d bytes on loan and z has %d", i+1, lent["y"], lent["z"])
			}
		}
		s.equal(map[string]int64{"y": 200, "z": 200}, lent)
	}},
}
