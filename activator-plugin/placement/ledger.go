package placement

import (
	"sync"

	"libra.dev/libra/pkg/api"
)

// ledger holds the debits of decisions made here that the node's profile may not show yet.
type ledger struct {
	cpu, memory account

	mu    sync.Mutex
	asked int64         // the last refresh to begin before the latest debit
	since api.Resources // debited since that refresh began
}

// debited returns the sum of all debits.
func (l *ledger) debited() api.Resources {
	return api.Resources{CPUMilli: l.cpu.debited[l.cpu.slot].Load(), MemoryBytes: l.memory.debited[l.memory.slot].Load()}
}

// add debits a volume. asked is the last refresh to have begun.
func (l *ledger) add(asked int64, volume api.Resources) {
	if volume.IsZero() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked != asked {
		l.asked, l.since = asked, api.Resources{}
	}
	l.since = l.since.Add(volume)
	l.cpu.debited[l.cpu.slot].Add(volume.CPUMilli)
	l.memory.debited[l.memory.slot].Add(volume.MemoryBytes)
}

// settle ends the debits made before refresh number asked began: what it hears already includes them.
func (l *ledger) settle(asked int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var left api.Resources
	if l.asked >= asked {
		left = l.since
	}
	l.since = left
	l.cpu.debited[l.cpu.slot].Store(left.CPUMilli)
	l.memory.debited[l.memory.slot].Store(left.MemoryBytes)
}
