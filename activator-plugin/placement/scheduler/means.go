package scheduler

import (
	"sync/atomic"
	"time"

	"libra.dev/libra/pkg/pool"
)

const (
	// A mean covers the last slots, each slotFor long.
	slots   = 12
	slotFor = 5 * time.Second
	window  = slots * slotFor
)

// series is the sum, in milli CPU, of the samples of something in each slot.
type series struct {
	sums  [slots]int64
	total int64
}

func (s *series) add(slot int, milli int64) {
	s.sums[slot] += milli
	s.total += milli
}

func (s *series) clear(slot int) {
	s.total -= s.sums[slot]
	s.sums[slot] = 0
}

// means are what each node lends and lacks, on average. They are not safe for concurrent use.
type means struct {
	nodes map[string]*nodeMeans
	slot  int64 // the last, since 1970
}

type nodeMeans struct {
	profile pool.Profile // the last
	beat    time.Time    // its last heartbeat, by this process's clock
	counts  series       // of samples
	idle    series
	domains map[string]*domainMeans
	placed  *placed
}

func newNodeMeans(placed *placed) *nodeMeans {
	return &nodeMeans{domains: map[string]*domainMeans{}, placed: placed}
}

type domainMeans struct{ surplus, lacks series }

// hear takes in profiles that were asked for at a time. The pool's clock is compared only with itself.
func (m *means) hear(changes pool.Changes, asked time.Time) {
	if m.nodes == nil {
		m.nodes = map[string]*nodeMeans{}
	}
	for _, p := range changes.Profiles {
		n := m.nodes[p.Node]
		if n == nil {
			n = newNodeMeans(&placed{})
			m.nodes[p.Node] = n
		}
		var beat time.Time
		if !p.Heard.IsZero() {
			beat = asked.Add(-changes.Now.Sub(p.Heard))
		}
		// Two Redis of a cluster may both tell about a node that moved from one to the other.
		if beat.Before(n.beat) && changes.Now.Sub(p.Heard) > pool.LeaseTTL {
			continue
		}
		n.profile, n.beat = p, beat
	}
}

// sample adds what there is now, and returns the means, without what was placed lately.
func (m *means) sample(now time.Time) *picture {
	last := m.slot
	m.slot = now.UnixNano() / int64(slotFor)
	pic := &picture{at: now, nodes: make(map[string]*reading, len(m.nodes))}
	for name, n := range m.nodes {
		// Nothing is known about a node whose agent is silent, and what was known before no longer counts. The pods that
		// were placed there still do when the agent is back.
		if now.Sub(n.beat) > pool.LeaseTTL {
			if n.placed.any(now) {
				m.nodes[name] = newNodeMeans(n.placed)
			} else {
				delete(m.nodes, name)
			}
			continue
		}
		n.advance(last, m.slot)
		n.add(int(m.slot % slots))
		r := n.read()
		n.placed.show(r, now)
		pic.nodes[name] = r
	}
	return pic
}

// advance clears the slots that are older than the window.
func (n *nodeMeans) advance(last, to int64) {
	for i := max(last, to-slots) + 1; i <= to; i++ {
		slot := int(i % slots)
		n.counts.clear(slot)
		n.idle.clear(slot)
		for _, d := range n.domains {
			d.surplus.clear(slot)
			d.lacks.clear(slot)
		}
	}
}

func (n *nodeMeans) add(slot int) {
	n.counts.add(slot, 1)
	n.idle.add(slot, max(0, n.profile.Idle.CPUMilli))
	for name, d := range n.profile.Domains {
		of := n.domains[name]
		if of == nil {
			of = &domainMeans{}
			n.domains[name] = of
		}
		of.surplus.add(slot, lendable(n.profile.Open, d))
		of.lacks.add(slot, max(0, d.Lacks.CPUMilli))
	}
	for name, d := range n.domains {
		if d.surplus.total == 0 && d.lacks.total == 0 {
			delete(n.domains, name)
		}
	}
}

// lendable returns the surplus that is there and may be lent.
func lendable(open bool, d pool.DomainProfile) int64 {
	if !open || len(d.Lends) == 0 {
		return 0
	}
	return max(0, min(d.Surplus.CPUMilli, d.Lends[0].Volume.CPUMilli))
}

func (n *nodeMeans) read() *reading {
	r := &reading{placed: n.placed}
	r.idle.Store(n.idle.total / n.counts.total)
	if len(n.domains) > 0 {
		r.domains = make(map[string]*domainReading, len(n.domains))
		for name, d := range n.domains {
			of := &domainReading{}
			of.surplus.Store(d.surplus.total / n.counts.total)
			of.lacks.Store(d.lacks.total / n.counts.total)
			r.domains[name] = of
		}
	}
	return r
}

// picture is what all nodes lend and lack on average, as of a time.
type picture struct {
	at    time.Time
	nodes map[string]*reading
}

// reading is, in milli CPU, what a node has on average and nobody has taken. It is below zero if more was taken.
type reading struct {
	idle    atomic.Int64
	domains map[string]*domainReading
	placed  *placed
}

type domainReading struct{ surplus, lacks atomic.Int64 }

// take subtracts what a pod takes. Borrowers of all domains take idle CPU.
func (r *reading) take(of role, domain string, milli int64) {
	d := r.domains[domain]
	if of == borrower {
		r.idle.Add(-milli)
		if d != nil {
			d.surplus.Add(-milli)
		}
	} else if d != nil {
		d.lacks.Add(-milli)
	}
}
