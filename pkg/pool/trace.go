package pool

import "fmt"

// checkTrace only bounds what travels: whether it is a traceparent is for its readers
// to see.
func checkTrace(field, trace string) error {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(trace) != 0 && len(trace) != length {
		return fmt.Errorf("%s is %.100q: it must be empty or a W3C traceparent, of %d bytes", field, trace, length)
	}
	return nil
}

// addTraces gives each balance that of the newest that is traced, of the invocations in
// the pod and in those that it has loans with.
func (n *memoryNode) addTraces(balances map[string]Balance) {
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
