package pooltest

import (
	"maps"
	"slices"
	"time"

	"libra.dev/libra/pkg/pool"
)

// balances returns what each pod has borrowed and lent, without the rest of a Balance.
func (n *memoryNode) balances() map[string]pool.Balance {
	balances := make(map[string]pool.Balance)
	for l, volume := range n.loans {
		donor := balances[l.donor.name]
		donor.Lent = donor.Lent.Add(volume)
		balances[l.donor.name] = donor

		borrower := balances[l.borrower.Pod]
		borrower.Borrowed = borrower.Borrowed.Add(volume)
		balances[l.borrower.Pod] = borrower
	}
	return balances
}

func (n *memoryNode) state(now int64) pool.State {
	s := pool.State{Epoch: n.epoch, Now: time.UnixMilli(now), Open: n.open(now), Pods: n.balances(), Needs: make(map[string]int64), Begun: len(n.begun)}
	if n.heard(now) {
		s.Agent = n.beat.Agent
		maps.Copy(s.Needs, n.beat.Needs)
	}
	for _, p := range n.donors("") {
		if n.expires(p) > now {
			s.Available = s.Available.Add(p.spare)
		}
	}
	for of, struck := range n.struck {
		if n.suspended(now, of) {
			s.Suspended = append(s.Suspended, pool.Suspension{Function: of.function, Idle: of.idle, Until: time.UnixMilli(struck.until)})
		}
	}
	slices.SortFunc(s.Suspended, pool.Suspension.Compare)
	for in, u := range n.unseen {
		if u.lapsed() && !u.forgotten(now) && !slices.Contains(s.Unseen, in.pod) {
			s.Unseen = append(s.Unseen, in.pod)
		}
	}
	slices.Sort(s.Unseen)
	s.Raised = slices.Sorted(maps.Keys(n.raised))
	for pod := range n.pods {
		if short := n.shortOfMemory(pod); short > 0 {
			balance := s.Pods[pod]
			balance.Short = short
			s.Pods[pod] = balance
		}
	}
	for pod, balance := range s.Pods {
		if p := n.pods[pod]; p.idle != nil {
			balance.Allocation, balance.Idle = p.idle.Allocation, true
		} else {
			here := n.in(pod)
			balance.Allocation = here[len(here)-1].Allocation
		}
		s.Pods[pod] = balance
	}
	n.addTraces(s.Pods)
	s.InFlight = n.inFlight(now)
	return s
}

// shortOfMemory returns how many bytes a pod's invocations want that nobody lends
// them.
func (n *memoryNode) shortOfMemory(pod string) (short int64) {
	for _, b := range n.in(pod) {
		short += max(0, b.Want.MemoryBytes-n.borrowed(b).MemoryBytes)
	}
	return short
}

// inFlight returns the ranked invocations by pod.
func (n *memoryNode) inFlight(now int64) map[string][]pool.Flight {
	flights := make(map[string][]pool.Flight)
	for pod := range n.pods {
		for _, b := range n.in(pod) {
			if b.Ranked {
				flights[pod] = append(flights[pod], pool.Flight{
					ID: b.ID,
					// The clock may have gone back.
					Age:     time.Duration(max(now-b.begunAt, 0)) * time.Millisecond,
					CPUTime: time.Duration(ceilMillis(b.CPUTime)) * time.Millisecond,
				})
			}
		}
	}
	return flights
}
