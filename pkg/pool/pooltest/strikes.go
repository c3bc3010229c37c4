package pooltest

import "libra.dev/libra/pkg/pool"

// strikes are the safeguard's strikes against a function.
type strikes struct {
	count int
	until int64 // until when its CPU is not lent
}

func (n *memoryNode) safeguard(now int64, pod string, idle bool) (revokedMilli int64) {
	p, ok := n.pods[pod]
	if !ok || n.lent(p).Add(p.spare).CPUMilli == 0 || idle != (p.idle != nil) {
		return 0
	}
	if idle {
		revokedMilli = n.lent(p).CPUMilli
		n.strike(now, p.idle.Function)
		n.wake(now, p)
	} else {
		here := n.in(pod)
		revokedMilli = n.forfeit(p, cpuOf)
		n.strike(now, here[0].Function)
		for _, b := range here {
			b.safeguarded = true
		}
	}
	n.feed(now, p.domain)
	return revokedMilli
}

func (n *memoryNode) strike(now int64, function string) {
	s := n.struck[function]
	if s.forgotten(now) {
		s = strikes{}
	}
	suspended := pool.SuspendMost
	if s.count < 10 {
		suspended = min(pool.SuspendLeast<<s.count, pool.SuspendMost)
	}
	s.count++
	s.until = now + suspended.Milliseconds()
	n.struck[function] = s
}

func (n *memoryNode) suspended(now int64, function string) bool {
	s := n.struck[function]
	return now < s.until && !s.forgotten(now)
}

// forgotten says whether strikes no longer count. Strikes that suspend for
// longer than any strike can are from before the clock went back.
func (s strikes) forgotten(now int64) bool {
	most := pool.SuspendMost.Milliseconds()
	return s.count == 0 || s.until+most <= now || now+most < s.until
}
