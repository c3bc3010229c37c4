package scheduler

import (
	"sync"

	"libra.dev/libra/pkg/api"
)

const (
	// functionsMost bounds how many functions are remembered, of which those that were not heard of for the longest are
	// forgotten.
	functionsMost = 20_000
	// lately is about how many of its last invocations the mean of a function is of.
	lately = 16
)

// leanings are how much CPU invocations of functions need lately. Functions are Configurations, so that a new revision has
// that of the last.
type leanings struct {
	mu sync.Mutex
	// Half of those that are remembered are in each; the older ones go when the newer are as many as may be.
	newer, older map[string]need
}

// need is a mean.
type need struct {
	micro int64 // of a milli CPU, so that integers do
	of    int64 // invocations
}

const micro = 1 << 10

// hear takes in what an invocation needed: what was predicted, as the activator goes by that, and where nothing was what it
// used. That is no more than its limit, but the prediction is: the predictor doubles it while it sees one at its limit.
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

// needOf is how much CPU an invocation needs, or false where that is not known.
func (l *leanings) needOf(configuration string) (milli int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.find(configuration)
	return n.micro / micro, n.of > 0
}

// role is what a pod is there for.
type role int

const (
	neither role = iota
	borrower
	donor
)

// roleOf is that of a pod whose invocations need so much on average, and how much it would borrow or can lend then. A
// donor keeps a quarter more than it needs.
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
