package pooltest

import "libra.dev/libra/pkg/pool"

// addTraces gives each balance the trace of the newest traced invocation among those in
// the pod and in the pods that it has loans with.
func (n *memoryNode) addTraces(balances map[string]pool.Balance) {
	newest := make(map[string]int) // number of its Begin, by pod
	note := func(pod string, b *begun) {
		if balance, ok := balances[pod]; ok && b.Trace != "" && b.number > newest[pod] {
			newest[pod] = b.number
			balance.Trace = b.Trace
			balances[pod] = balance
		}
	}
	for _, b := range n.begun {
		note(b.Pod, b)
		for l := range n.loans {
			if b.Pod == l.donor.name {
				note(l.borrower.Pod, b)
			} else if b.Pod == l.borrower.Pod {
				note(l.donor.name, b)
			}
		}
	}
}
