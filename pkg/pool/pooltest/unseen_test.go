package pooltest

import (
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// running is an invocation between its Begin, arrived or not, and its End.
type running struct {
	owner, pod, domain string
	number             int64
	// untold says that the pool has not been told about it in this epoch, neither by its own Begin
	// nor by a later one of its owner in its pod.
	untold bool
	// missed is since when the pool has been told about it but does not know it; zero if that is
	// not so.
	missed time.Time
}

// run starts inv, or repeats it if it is running already.
func (m *model) run(t *rapid.T, inv pool.Invocation) pool.Invocation {
	r := m.running[inv.ID]
	if r == nil {
		m.number++
		r = &running{owner: inv.Owner, pod: inv.Pod, domain: inv.Domain, number: m.number, untold: true}
		// A Begin that comes after its End runs nothing.
		if !m.node().isBuried(m.nowMillis(), inv.ID) {
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

// deliver sends a Begin that was held, unless its invocation has ended.
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

// leave takes in an End, of a known invocation or an unknown one.
func (m *model) leave(e pool.Ending, known *begun) {
	delete(m.running, e.ID)
	switch {
	case e.ComputesIn == "":
	case known != nil:
		m.computing[known.Pod] = m.clock.Now()
	default:
		m.computing[e.ComputesIn] = m.clock.Now()
	}
}

// giveUp ends what the pool has missed for UnseenMost: no request lasts longer.
func (m *model) giveUp() {
	maps.DeleteFunc(m.computing, func(_ string, since time.Time) bool { return m.clock.Now().Sub(since).Abs() >= pool.UnseenMost })
	for id, r := range m.running {
		if !r.missed.IsZero() && m.clock.Now().Sub(r.missed).Abs() >= pool.UnseenMost {
			delete(m.running, id)
		}
	}
}

// seeWhole runs after a heartbeat. With the first whole one of an epoch, the pool assumes that
// invocations from before may be in the pods that take part.
func (m *model) seeWhole(hb pool.Heartbeat) {
	if !hb.Whole || hb.Epoch != m.node().epoch {
		return
	}
	since := m.notAhead(m.beganAt)
	for id, r := range m.before {
		_, takesPart := hb.Pods[r.pod]
		if takesPart && m.running[id] == r && m.computing[r.pod].Before(since) && m.clock.Now().Sub(since) < pool.UnseenMost {
			m.computing[r.pod] = since
		}
	}
	m.before = nil
}

// rest runs after a heartbeat. In a pod at rest, invocations that had lapsed by RestedAt are over;
// those that lapsed later, or that their owner counts, are not.
func (m *model) rest(hb pool.Heartbeat) {
	n := m.node()
	for _, pod := range hb.Rested {
		since, ok := m.computing[pod]
		if !ok {
			continue
		}
		if m.computing[pod] = m.notAhead(since); !m.computing[pod].After(hb.RestedAt) {
			delete(m.computing, pod)
		}
	}
	for id, r := range m.running {
		if _, counted := n.unseen[inPod{r.pod, r.owner}]; !slices.Contains(hb.Rested, r.pod) || r.untold || n.begun[id] != nil || counted {
			continue
		}
		if r.missed.IsZero() {
			r.missed = m.clock.Now()
		}
		if r.missed = m.notAhead(r.missed); !r.missed.After(hb.RestedAt) {
			delete(m.running, id)
		}
	}
}

// notAhead returns at, or now if that is from before the clock went back.
func (m *model) notAhead(at time.Time) time.Time {
	if now := m.clock.Now(); at.After(now) {
		return now
	}
	return at
}

// heard runs after a Begin. The pool has been told about everything that an owner's latest Begin in
// a pod counts.
func (m *model) heard(inv pool.Invocation, known *begun) {
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

// checkUnseen checks invariant 11: a pod lends nothing, and no invocation counts as alone in it,
// while one runs there that the pool was told about but does not know, or that computes for a
// client that left.
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

// checkKeeps checks a pod with something in it that the pool does not know.
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
