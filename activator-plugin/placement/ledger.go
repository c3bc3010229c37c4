package placement

import (
	"sync"

	"libra.dev/libra/pkg/api"
)

// ledger is what was decided here and may not have been heard of the node yet.
type ledger struct {
	cpu, memory account

	mu    sync.Mutex
	asked int64         // the refresh that was the last to begin before the latest debit
	since api.Resources // debited since that began
}

// debited is all that is.
func (l *ledger) debited() api.Resources {
	return api.Resources{CPUMilli: l.cpu.debited[l.cpu.slot].Load(), MemoryBytes: l.memory.debited[l.memory.slot].Load()}
}

// add debits a volume, while the refresh of this number is the last to have begun.
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

// settle ends what was debited before the refresh of this number began: what is heard by it tells of that.
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
