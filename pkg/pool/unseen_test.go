package pool

import (
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool/redistest"
)

// unseenScenes are those of pods with invocations in them that the pool does not know.
var unseenScenes = []play{
	{"one of before the epoch is in the pod until its owner's next Begin there does not count it", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 1))
		s.expect(1, cpu(0), nil)
		s.equal(Outcome{Found: true}, s.end("a2"))
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
		s.equal(Outcome{Found: true, Lent: cpu(600)}, s.end("a2"))
	}},
	{"one that lapsed is in the pod until its owner's next Begin there does not count it", func(s scene) {
		s.begin(numbered(invocation("a", time.Minute, cpu(300), cpu(0)), 1, 0))
		s.pass(LeaseTTL)
		s.open()
		late := numbered(invocation("a2", time.Minute, cpu(300), cpu(0)), 2, 1)
		late.Pod = "default/a"
		s.begin(late)
		s.expect(1, cpu(0), nil)
		s.equal(Outcome{Found: true}, s.end("a2"))
		late.ID, late.Number, late.Others = "a3", 3, 0
		s.begin(late)
		s.expect(1, cpu(300), nil)
	}},
	{"what has lapsed is over when its pod rests", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.pass(LeaseTTL)
		s.open()
		other := invocation("a2", time.Hour, cpu(300), cpu(0))
		other.Pod, other.Owner = "default/a", "activator-2"
		s.begin(other)
		s.expect(1, cpu(0), nil)
		s.rest("default/b")
		s.expect(1, cpu(0), nil)
		s.rest("default/a")
		s.expect(1, cpu(300), nil)
		s.equal(Outcome{Found: true}, s.end("a2"))
		other.ID = "a3"
		s.begin(other)
		s.equal(Outcome{Found: true, Alone: true}, s.end("a3"))
	}},
	{"what its owner counts is not over when its pod rests", func(s scene) {
		s.begin(numbered(shared("a2", "a", time.Minute, need(300, 64)), 2, 1))
		s.rest("default/a")
		s.expect(1, cpu(0), nil)
	}},
	{"what computes for a client that went away is in its pod until that rests", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.equal(Outcome{Found: true}, s.endComputing("a", "default/a"))
		s.equal([]string{"default/a"}, s.read().Unseen)
		other := numbered(invocation("a2", time.Minute, cpu(300), cpu(0)), 2, 0)
		other.Pod, other.IdleCPUMilli = "default/a", 900
		s.begin(other)
		s.expect(1, cpu(0), nil)
		s.equal(Outcome{Found: true}, s.end("a2"))
		s.rest("default/a")
		s.equal([]string(nil), s.read().Unseen)
		other.ID, other.Number = "a3", 3
		s.begin(other)
		s.expect(1, cpu(300), nil)
		s.equal(Outcome{Found: true, Alone: true}, s.end("a3"))
	}},
	{"so does one that the pool did not know", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.begin(invocation("b", time.Minute, cpu(0), cpu(200)))
		s.begin(invocation("c", time.Minute, cpu(100), cpu(0)))
		s.equal(Outcome{}, s.endComputing("unknown", "default/a"))
		s.expect(3, cpu(0), map[string]Balance{"c": {Lent: cpu(100)}, "b": {Borrowed: cpu(100)}})
		s.equal(Outcome{}, s.endComputing("unknown", "default/a"))
		s.rest("default/a")
		s.expect(3, cpu(100), map[string]Balance{"a": {Lent: cpu(200)}, "b": {Borrowed: cpu(200)}}) // c takes no part any more
		s.equal(Outcome{Found: true, Lent: cpu(200)}, s.end("a"))
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
		s.expect(1, cpu(700), map[string]Balance{"a": {Lent: cpu(200), Idle: true}, "b": {Borrowed: cpu(200)}})
	}},
	{"what computes is taken to be over in the end", func(s scene) {
		s.endComputing("unknown", "default/a")
		s.pass(UnseenMost - time.Millisecond)
		s.equal([]string{"default/a"}, s.read().Unseen)
		s.pass(time.Millisecond)
		s.equal([]string(nil), s.read().Unseen)
	}},
	{"what has lapsed is taken to be over in the end", func(s scene) {
		s.begin(invocation("a", time.Minute, cpu(300), cpu(0)))
		s.pass(LeaseTTL)
		s.expect(0, cpu(0), nil)
		other := invocation("a2", time.Hour, cpu(300), cpu(0))
		other.Pod, other.Owner = "default/a", "activator-2"
		s.pass(UnseenMost - time.Millisecond)
		s.open()
		s.begin(other)
		s.expect(1, cpu(0), nil)
		s.equal(Outcome{Found: true}, s.end("a2"))
		s.pass(time.Millisecond)
		other.ID = "a3"
		s.begin(other)
		s.expect(1, cpu(300), nil)
	}},
}

// endComputing is an End of one whose client went away.
func (s scene) endComputing(id, pod string) Outcome {
	s.Helper()
	outcome, err := s.pool.End(redistest.Context(s), sceneNode, Ending{ID: id, ComputesIn: pod})
	if err != nil {
		s.Fatal(err)
	}
	return outcome
}

func numbered(inv Invocation, number int64, others int) Invocation {
	inv.Number, inv.Others = number, others
	return inv
}

// running is an invocation between its Begin, arrived or not, and its End.
type running struct {
	owner, pod, domain string
	number             int64
	// untold says that the pool has not been told of it in this epoch: neither by its own Begin
	// nor by that of a later one of its owner's in its pod.
	untold bool
	// missed is since when the pool does not know it and was told of it; zero is not.
	missed time.Time
}

// run makes inv one that runs, or tells again of one that does.
func (m *model) run(t *rapid.T, inv Invocation) Invocation {
	r := m.running[inv.ID]
	if r == nil {
		m.number++
		r = &running{owner: inv.Owner, pod: inv.Pod, domain: inv.Domain, number: m.number, untold: true}
		// A Begin that comes after its End runs nothing.
		if m.node().tombstones[inv.ID] <= m.nowMillis() {
			m.running[inv.ID] = r
		}
	}
	inv.Owner, inv.Pod, inv.Domain, inv.Number = r.owner, r.pod, r.domain, r.number
	inv.Others = 0
	for _, other := range m.running {
		if other.owner == r.owner && other.pod == r.pod && other.number < r.number {
			inv.Others++
		}
	}
	// An End may be answered after the Begin was sent.
	inv.Others += rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(t, "ended meanwhile")
	return inv
}

func (m *model) hold(t *rapid.T) {
	if len(m.held) < 3 {
		m.held = append(m.held, m.run(t, drawShared(t)))
	}
}

// deliver sends one that was held, unless it has ended.
func (m *model) deliver(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "which")
	inv := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	if r := m.running[inv.ID]; r != nil && r.number == inv.Number {
		m.send(t, inv)
	}
}

// leave takes in an End, of one that was known or not.
func (m *model) leave(e Ending, known *begun) {
	delete(m.running, e.ID)
	switch {
	case e.ComputesIn == "":
	case known != nil:
		m.computing[known.Pod] = m.clock.Now()
	default:
		m.computing[e.ComputesIn] = m.clock.Now()
	}
}

// giveUp ends what the pool has missed for UnseenMost: no request lasts for longer.
func (m *model) giveUp() {
	maps.DeleteFunc(m.computing, func(_ string, since time.Time) bool { return m.clock.Now().Sub(since).Abs() >= UnseenMost })
	for id, r := range m.running {
		if !r.missed.IsZero() && m.clock.Now().Sub(r.missed).Abs() >= UnseenMost {
			delete(m.running, id)
		}
	}
}

// rest comes after a heartbeat. What has lapsed in a pod at rest is over; what its owner counts is not.
func (m *model) rest(pods []string) {
	n := m.node()
	for _, pod := range pods {
		delete(m.computing, pod)
	}
	for id, r := range m.running {
		_, counted := n.unseen[inPod{r.pod, r.owner}]
		if slices.Contains(pods, r.pod) && !r.untold && n.begun[id] == nil && !counted {
			delete(m.running, id)
		}
	}
}

// heard comes after a Begin. What the latest of an owner's in a pod counts, the pool was told of.
func (m *model) heard(inv Invocation, known *begun) {
	b := m.node().begun[inv.ID]
	if b == nil || b == known {
		return
	}
	for _, r := range m.running {
		if r.owner == b.Owner && r.pod == b.Pod && r.number <= b.Number {
			r.untold = false
		}
	}
}

// checkUnseen is invariant 11: nothing is lent of a pod, and nobody counts as alone in it, while
// there runs one that the pool was told of and does not know, or computes for a client that left.
func (m *model) checkUnseen(t *rapid.T) {
	n, now := m.node(), m.clock.Now()
	for pod := range m.computing {
		m.checkKeeps(t, pod, "something that computes for a client that left")
	}
	for id, r := range m.running {
		if r.untold || n.begun[id] != nil {
			r.missed = time.Time{}
			continue
		}
		if r.missed.IsZero() {
			r.missed = now
		}
		m.checkKeeps(t, r.pod, id)
	}
}

// checkKeeps checks a pod in which there is what the pool does not know.
func (m *model) checkKeeps(t *rapid.T, pod, unseen string) {
	n := m.node()
	if p := n.pods[pod]; p != nil && n.lent(p).Add(p.spare) != (api.Resources{}) {
		t.Fatalf("%s runs in %s unseen, which has %v in the pool", unseen, pod, n.lent(p).Add(p.spare))
	}
	for _, b := range n.in(pod) {
		if b.alone {
			t.Fatalf("%s runs in %s unseen, and %s counts as alone", unseen, pod, b.ID)
		}
	}
}
