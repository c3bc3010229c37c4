package placement

import (
	"sync"
	"sync/atomic"

	"libra.dev/libra/pkg/api"
)

// ledger is what was decided here and may not have been heard of the node yet.
type ledger struct {
	cpu, memory account

	mu    sync.Mutex
	asked int64         // the refresh that was the last to begin before the latest debit
	since api.Resources // debited since that began
}

// account is one resource's: what there is at most, and all that is debited of it.
type account struct {
	debited atomic.Int64
	bounds  bounds
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
	l.cpu.debited.Add(volume.CPUMilli)
	l.memory.debited.Add(volume.MemoryBytes)
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
	l.cpu.debited.Store(left.CPUMilli)
	l.memory.debited.Store(left.MemoryBytes)
}

// most is no less than which share of want there is, over a time, beside own; less than 0 where nothing is
// known.
//
// With a debit d there is F(want+d) - F(d), where F(x) is how much of x there is. F is concave and F(0) is 0:
// so that is no more than want/(want+d) of F(want+d).
func (a *account) most(of *between, want, own int64) float64 {
	one := a.bounds.of(of.one)
	if one < 0 {
		return -1
	}
	if want <= 0 {
		return 1
	}
	// The built-in min of floating-point numbers asks for more than what is needed here.
	level := of.ofOne*float64(one) + of.ofOther*float64(a.bounds.of(of.other)) + of.more
	if most := float64(a.bounds.of(of.most)); level > most {
		level = most
	}
	debited := a.debited.Load() + own
	if debited <= 0 {
		if level >= float64(want) {
			return 1
		}
		return level / float64(want)
	}
	left := a.bounds.of(0) - debited
	switch {
	case left <= 0:
		return 0
	case float64(left)*float64(want+debited) <= level*float64(want):
		return float64(min(left, want)) / float64(want)
	case level >= float64(want+debited):
		return 1
	default:
		return level / float64(want+debited)
	}
}
