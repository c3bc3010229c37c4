package scheduler

import (
	"sync"

	"libra.dev/libra/pkg/api"
)

const (
	// functionsMost bounds how many functions are remembered. Those not heard of for the longest are forgotten.
	functionsMost = 20_000
	// lately is about how many of a function's last invocations its mean covers.
	lately = 16
)

// leanings are how much CPU the invocations of functions have needed lately. Functions are Configurations, so that a
// new revision starts with the mean of the last.
type leanings struct {
	mu sync.Mutex
	// Each holds up to half of the functions that are remembered. When newer is full, it becomes older, and the functions
	// in older are forgotten.
	newer, older map[string]need
}

// need is a mean.
type need struct {
	micro int64 // 1/1024 milli CPU, so that integers do
	of    int64 // how many invocations
}

const micro = 1 << 10

// hear takes in what an invocation needed: what was predicted, because the activator goes by that, or what it used if
// nothing was predicted. The use is never above the limit, but the prediction may be: the predictor doubles it while it
// sees an invocation at its limit.
func (l *leanings) hear(o *api.Observation) {
	milli := o.Predicted.CPUMilli
	if milli <= 0 && !o.First {
		milli = o.Peak.CPUMilli
	}
	if milli <= 0 || o.Configuration == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.find(o.Configuration)
	n.of = min(n.of+1, lately)
	n.micro += (milli*micro - n.micro) / n.of
	if l.newer == nil || len(l.newer) >= functionsMost/2 {
		l.newer, l.older = make(map[string]need), l.newer
	}
	l.newer[o.Configuration] = n
}

func (l *leanings) find(configuration string) need {
	if n, ok := l.newer[configuration]; ok {
		return n
	}
	return l.older[configuration]
}

// needOf returns how much CPU an invocation needs on average. known is false if nothing is known about the function.
func (l *leanings) needOf(configuration string) (milli int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.find(configuration)
	return n.micro / micro, n.of > 0
}

// role is what a pod is there for: to borrow, to lend, or neither.
type role int

const (
	neither role = iota
	borrower
	donor
)

// roleOf returns the role of a pod whose invocations need that much on average, and how much it would then borrow or
// can lend. A donor keeps a quarter more than it needs.
func roleOf(need, allocation int64, mode api.Mode) (of role, milli int64) {
	switch spare := allocation - need*5/4; {
	case mode == api.ModeFull && need > allocation:
		return borrower, need - allocation
	case mode != api.ModeObserve && spare > 0:
		return donor, spare
	default:
		return neither, 0
	}
}
