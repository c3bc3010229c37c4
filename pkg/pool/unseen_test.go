package pool_test

import (
	"time"

	"libra.dev/libra/pkg/pool"
	"libra.dev/libra/pkg/pool/redistest"
)

// unseenScenes are about pods with invocations in them that the pool does not know.
var unseenScenes = []play{
	{"one of before the epoch is in the pod until its owner's next Begin there does not count it", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 1))
		s.expect(1, cpu(0), nil)
		s.equal(pool.Outcome{Found: true}, s.end("a2"))
		s.begin(numbered(shared("a3", "a", time.Minute, need(300, 64)), 3, 1))
		s.expect(1, cpu(0), nil)
		other := numbered(shared("o1", "a", time.Minute, need(300, 64)), 1, 0)
		other.Owner = "activator-2"
		s.begin(other)
		s.expect(2, cpu(0), nil)
		s.end("a3")
		s.expect(1, cpu(0), nil)
		s.begin(numbered(shared("a4", "a", time.Minute, need(300, 64)), 4, 0))
		s.expect(2, need(400, 384), nil)
	}},
	{"those that are known are not counted twice", func(s scene) {
		s.begin(numbered(shared("a1", "a", time.Minute, need(300, 64)), 1, 0))
		s.begin(numbered(shared("a2", "a", time.Minute, need(200, 64)), 2, 1))
		s.expect(2, need(500, 384), nil)
		s.begin(numbered(shared("a3", "a", time.Minute, need(100, 64)), 3, 2))
		s.expect(3, need(400, 320), nil)
	}},
	{"Begins that arrive in another order", func(s scene) {
		s.begin(numbered(shared("a3", "a", time.Minute, need(100, 64)), 3, 2))
		s.expect(1, cpu(0), nil)
		s.begin(numbered(shared("a1", "a", time.Minute, need(300, 64)), 1, 0))
		s.expect(2, cpu(0), nil)
		s.begin(numbered(shared("a2", "a", time.Minute, need(200, 64)), 2, 1))
		s.expect(3, need(400, 320), nil)
	}},
	{"a pod takes back what it has lent when there are more in it than is known", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 0))
		s.equal(cpu(600), s.begin(invocation("b", time.Minute, cpu(0), cpu(600))))
		s.begin(numbered(shared("a3", "a", time.Minute, need(100, 64)), 3, 2))
		s.expect(3, cpu(0), nil)
		s.equal(pool.Outcome{Found: true, Lent: cpu(600)}, s.end("a2"))
	}},
	{"one that lapsed is in the pod until its owner's next Begin there does not count it", func(s scene) {
		s.begin(numbered(invocation("a", time.Minute, cpu(300), cpu(0)), 1, 0))
		s.pass(pool.LeaseTTL)
		s.open()
		late := numbered(invocation("a2", time.Minute, cpu(300), cpu(0)), 2, 1)
		late.Pod = "default/a"
		s.begin(late)
		s.expect(1, cpu(0), nil)
		s.equal(pool.Outcome{Found: true}, s.end("a2"))
		late.ID, late.Number, late.Others = "a3", 3, 0
		s.begin(late)
		s.expect(1, cpu(300), nil)
	}},
	{"what has lapsed is over when its pod rests", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.pass(pool.LeaseTTL)
		s.open()
		other := invocation("a2", time.Hour, cpu(300), cpu(0))
		other.Pod, other.Owner = "default/a", "activator-2"
		s.begin(other)
		s.expect(1, cpu(0), nil)
		s.rest("default/b")
		s.expect(1, cpu(0), nil)
		s.rest("default/a")
		s.expect(1, cpu(300), nil)
		s.equal(pool.Outcome{Found: true}, s.end("a2"))
		other.ID = "a3"
		s.begin(other)
		s.equal(pool.Outcome{Found: true, Alone: true}, s.end("a3"))
	}},
	{"what its owner counts is not over when its pod rests", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 1))
		s.rest("default/a")
		s.expect(1, cpu(0), nil)
	}},
	{"what computes for a client that went away is in its pod until that rests", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.equal(pool.Outcome{Found: true}, s.endComputing("a", "default/a"))
		s.equal([]string{"default/a"}, s.read().Unseen)
		other := numbered(invocation("a2", time.Minute, cpu(300), cpu(0)), 2, 0)
		other.Pod, other.IdleCPUMilli = "default/a", 900
		s.begin(other)
		s.expect(1, cpu(0), nil)
		s.equal(pool.Outcome{Found: true}, s.end("a2"))
		s.rest("default/a")
		s.equal([]string(nil), s.read().Unseen)
		other.ID, other.Number = "a3", 3
		s.begin(other)
		s.expect(1, cpu(300), nil)
		s.equal(pool.Outcome{Found: true, Alone: true}, s.end("a3"))
	}},
	{"so does one that the pool did not know", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(200)))
		s.begin(invocation("c", time.Minute, cpu(100), cpu(0)))
		s.equal(pool.Outcome{}, s.endComputing("unknown", "default/a"))
		s.expect(3, cpu(0), map[string]pool.Balance{"c": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
		s.equal(pool.Outcome{}, s.endComputing("unknown", "default/a"))
		s.rest("default/a")
		s.expect(3, cpu(100), map[string]pool.Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}}) // c no longer takes part
		s.equal(pool.Outcome{Found: true, Lent: cpu(200)}, s.end("a"))
	}},
	{"what a client left after the agent looked is in its pod until the agent looks again", func(s scene) {
		looked := s.clock.Now()
		s.pass(time.Millisecond)
		s.endComputing("unknown", "default/a")
		s.restSince("default/a", looked)
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.rest("default/a")
		s.equal([]string(nil), s.read().Unseen)
	}},
	{"so is what lapsed after the agent looked", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.pass(pool.LeaseTTL)
		s.open()
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.restSince("default/a", s.clock.Now().Add(-time.Millisecond))
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.rest("default/a")
		s.equal([]string(nil), s.read().Unseen)
	}},
	{"a pod rests in spite of a clock that goes back", func(s scene) {
		s.endComputing("unknown", "default/a")
		looked := s.clock.Now()
		s.pass(-time.Minute)
		s.restSince("default/a", looked)
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.restSince("default/a", s.clock.Now().Add(-time.Millisecond))
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.rest("default/a")
		s.equal([]string(nil), s.read().Unseen)
	}},
	{"an idle donor lends nothing while something computes in it", func(s scene) {
		idle := invocation("a", time.Minute, cpu(300), cpu(0))
		idle.IdleCPUMilli = 900
		s.begin(idle)
		s.end("a")
		s.expect(0, cpu(900), nil)
		s.equal(cpu(200), s.begin(invocation("b", time.Minute, cpu(0), cpu(200))))
		s.endComputing("unknown", "default/a")
		s.expect(1, cpu(0), nil)
		s.rest("default/a")
		s.expect(1, cpu(700), map[string]pool.Balance{"a": {Lent: cpu(200), Idle: true}, "b": {Borrowed: cpu(200)}})
	}},
	{"what computes is taken to be over in the end", func(s scene) {
		s.endComputing("unknown", "default/a")
		s.pass(pool.UnseenMost - time.Millisecond)
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.pass(time.Millisecond)
		s.equal([]string(nil), s.read().Unseen)
	}},
	{"what its owner counts in a pod that is gone is taken to be over in the end", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 1))
		s.heartbeat(unlimited, map[string]int64{"b": 0})
		s.equal([]string(nil), s.read().Unseen) // a known invocation is in it, and its owner may tell
		s.end("a2")
		s.heartbeat(unlimited, map[string]int64{"b": 0})
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.isOverInTheEnd()
		s.equal([]string(nil), s.read().Unseen)
	}},
	{"its owner tells of them again when the pod takes part again", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 1))
		s.end("a2")
		s.heartbeat(unlimited, map[string]int64{"b": 0})
		s.open()
		s.begin(numbered(shared("a3", "a", time.Minute, need(300, 64)), 3, 1))
		s.equal([]string(nil), s.read().Unseen)
		s.expect(1, cpu(0), nil)
		s.end("a3")
		s.begin(numbered(shared("a4", "a", time.Minute, need(300, 64)), 4, 0))
		s.expect(1, need(700, 448), nil)
	}},
	{"what has lapsed is taken to be over in the end", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.pass(pool.LeaseTTL)
		s.expect(0, cpu(0), nil)
		s.isOverInTheEnd()
	}},
}

// isOverInTheEnd checks that an unseen invocation in the pod default/a keeps it from lending to the
// last moment, and no longer.
func (s scene) isOverInTheEnd() {
	s.Helper()
	other := invocation("early", time.Hour, cpu(300), cpu(0))
	other.Pod, other.Owner = "default/a", "activator-2"
	s.pass(pool.UnseenMost - time.Millisecond)
	s.open()
	s.begin(other)
	s.expect(1, cpu(0), nil)
	s.equal(pool.Outcome{Found: true}, s.end("early"))
	s.pass(time.Millisecond)
	other.ID = "late"
	s.begin(other)
	s.expect(1, cpu(300), nil)
}

// newEpochScenes are about a node that has not been opened.
var newEpochScenes = []play{
	{"those of before the epoch may be in any pod that takes part when it is first seen whole, until that rests", func(s scene) {
		s.open()
		s.equal(scenePods, s.read().Unseen)
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.heartbeat(unlimited, map[string]int64{"a": 0, "new": 0})
		s.begin(invocation("new", time.Minute, cpu(300), cpu(0)))
		s.expect(2, cpu(300), nil)
		s.rest("default/a")
		s.equal(scenePods[1:], s.read().Unseen)
		s.equal(pool.Outcome{Found: true}, s.end("a"))
		next := invocation("a2", time.Minute, cpu(200), cpu(0))
		next.Pod = "default/a"
		s.begin(next)
		s.expect(2, cpu(200), nil)
	}},
	{"a heartbeat that is not whole tells of none", func(s scene) {
		hb := pool.Heartbeat{Agent: "agent-1", Epoch: s.read().Epoch, Pods: map[string]int64{"default/a": 0}}
		if _, err := s.pool.Heartbeat(redistest.Context(s), sceneNode, hb); err != nil {
			s.Fatal(err)
		}
		s.equal([]string(nil), s.read().Unseen)
	}},
}

// endComputing ends an invocation whose client went away.
func (s scene) endComputing(id, pod string) pool.Outcome {
	s.Helper()
	outcome, err := s.pool.End(redistest.Context(s), sceneNode, pool.Ending{ID: id, ComputesIn: pod})
	if err != nil {
		s.Fatal(err)
	}
	return outcome
}

func numbered(inv pool.Invocation, number int64, others int) pool.Invocation {
	inv.Number, inv.Others = number, others
	return inv
}
