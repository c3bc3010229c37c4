package pool_test

import (
	"time"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

func (s scene) ask(id string, milli int64) {
	s.Helper()
	if err := s.pool.Ask(redistest.Context(s), sceneNode, "default/"+id, milli); err != nil {
		s.Fatal(err)
	}
}

// askScenes are about invocations that turn out to want more CPU, or less, than they said.
var askScenes = []play{
	{"who has no prediction is lent what it turns out to want", func(s scene) {
		s.begin(invocation("a", time.Hour, cpu(800), cpu(0)))
		b := invocation("b", 0, cpu(0), cpu(0))
		b.WantMostMilli = 500
		s.begin(b)
		s.pass(time.Millisecond) // as long as it must have run
		s.expect(2, cpu(800), nil)
		s.ask("b", 200)
		s.expect(2, cpu(600), map[string]pool.Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}})
		s.ask("b", 2000)
		s.expect(2, cpu(300), map[string]pool.Balance{"a": {Lent: cpu(500)}, "b": {Borrowed: cpu(500)}})
		s.ask("b", 0)
		s.expect(2, cpu(800), nil)
		s.end("b")
		s.expect(1, cpu(800), nil)
	}},
	{"who has a prediction wants no more than that, and again what it gave back", func(s scene) {
		s.begin(invocation("a", time.Hour, cpu(800), cpu(0)))
		s.begin(invocation("b", time.Hour, cpu(0), cpu(300)))
		s.ask("b", 2000)
		s.expect(2, cpu(500), map[string]pool.Balance{"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
		s.ask("b", 100)
		s.expect(2, cpu(700), map[string]pool.Balance{"a": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
		s.ask("b", 2000)
		s.expect(2, cpu(500), map[string]pool.Balance{"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
	}},
	{"what is given back comes from the donors that are the first to end, and goes to others", func(s scene) {
		s.begin(invocation("long", time.Hour, cpu(200), cpu(0)))
		s.begin(invocation("short", time.Minute, cpu(200), cpu(0)))
		s.begin(invocation("b", time.Hour, cpu(0), cpu(400)))
		s.begin(invocation("c", time.Minute, cpu(0), cpu(100)))
		s.ask("b", 250)
		s.expect(4, cpu(50), map[string]pool.Balance{
			"long": {Lent: cpu(200)}, "short": {Lent: cpu(150)}, "b": {Borrowed: cpu(250)}, "c": {Borrowed: cpu(100)},
		})
	}},
	{"what several in a pod want is shared among them, the first to begin first", func(s scene) {
		s.begin(invocation("a", time.Hour, cpu(1000), cpu(0)))
		for _, id := range []string{"b", "b2"} {
			b := shared(id, "b", time.Hour, allocation)
			b.Surplus, b.Want, b.WantMostMilli = cpu(0), cpu(300), 500
			s.begin(b)
		}
		s.expect(3, cpu(399), map[string]pool.Balance{"a": {Lent: cpu(600)}, "b": {Borrowed: cpu(600)}})
		s.ask("b", 700)
		s.expect(3, cpu(299), map[string]pool.Balance{"a": {Lent: cpu(700)}, "b": {Borrowed: cpu(700)}})
		s.end("b2")
		s.expect(2, cpu(499), map[string]pool.Balance{"a": {Lent: cpu(500)}, "b": {Borrowed: cpu(500)}})
		s.ask("b", 100)
		s.expect(2, cpu(899), map[string]pool.Balance{"a": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
	}},
	{"what is given back goes to others of its domain, though its pod is in another by now", func(s scene) {
		s.begin(invocation("a", time.Hour, cpu(300), cpu(0)))
		b := shared("b", "b", time.Hour, allocation)
		b.Surplus, b.Want = cpu(0), cpu(300)
		s.begin(b)
		s.begin(invocation("c", time.Hour, cpu(0), cpu(100)))
		latest := shared("b2", "b", time.Hour, allocation)
		latest.Domain, latest.Surplus = "other", cpu(0)
		s.begin(latest)
		s.expect(4, cpu(0), map[string]pool.Balance{"a": {Lent: cpu(300)}, "b": {Borrowed: cpu(300)}})
		s.ask("b", 0)
		s.expect(4, cpu(200), map[string]pool.Balance{"a": {Lent: cpu(100)}, "c": {Borrowed: cpu(100)}})
	}},
	{"nobody asks in a pod with nobody in it", func(s scene) {
		s.begin(invocation("a", time.Hour, cpu(800), cpu(0)))
		s.begin(idling("b", 500))
		s.end("b")
		s.ask("b", 200)
		s.ask("c", 200)
		s.expect(1, cpu(1300), nil)
	}},
}
