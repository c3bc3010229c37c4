package pooltest

import "libra.dev/libra/pkg/pool"

// donors are a function's pods with invocations in them, or its idle ones.
type donors struct {
	function string
	idle     bool
}

// strikes are the safeguard's strikes against donors.
type strikes struct {
	count int
	until int64 // until when their CPU is not lent
}

func (n *memoryNode) safeguard(now int64, pod string, idle bool) (revokedMilli int64) {
	p, ok := n.pods[pod]
	if !ok || n.lent(p).Add(p.spare).CPUMilli == 0 || idle != (p.idle != nil) {
		return 0
	}
	if idle {
		revokedMilli = n.lent(p).CPUMilli
		n.strike(now, donors{p.idle.Function, true})
		n.wake(now, p)
	} else {
		here := n.in(pod)
		revokedMilli = n.forfeit(p, cpuOf)
		n.strike(now, donors{here[0].Function, false})
		for _, b := range here {
			b.safeguarded = true
		}
	}
	n.feed(now, p.domain)
	return revokedMilli
}

func (n *memoryNode) strike(now int64, of donors) {
	s := n.struck[of]
	if s.forgotten(now) {
		s = strikes{}
	}
	suspended := pool.SuspendMost
	if s.count < 10 {
		suspended = min(pool.SuspendLeast<<s.count, pool.SuspendMost)
	}
	s.count++
	s.until = now + suspended.Milliseconds()
	n.struck[of] = s
}

func (n *memoryNode) suspended(now int64, of donors) bool {
	s := n.struck[of]
	return now < s.until && !s.forgotten(now)
}

// forgotten says whether strikes no longer count. Strikes that suspend for
// longer than any strike can are from before the clock went back.
func (s strikes) forgotten(now int64) bool {
	most := pool.SuspendMost.Milliseconds()
	return s.count == 0 || s.until+most <= now || now+most < s.until
}
