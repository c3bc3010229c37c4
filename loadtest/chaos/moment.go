package main

import (
	"fmt"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	// nudgeMilli is by how much the resizer raises a limit for a moment to make the
	// kubelet write it, where an agent is gone: docs/resizer.md.
	nudgeMilli = 1

	// weightsRest is how long after the last answer, or after the pool was lost, weights may
	// be other than the kubelet's: the agent weighs every 100 ms, and takes a pod that uses
	// CPU for one with a request.
	weightsRest = time.Second
	// holdRest is how long functions may be held for others after the last answer: 6.4 s at
	// most, and a second to get back what they had (docs/sources.md).
	holdRest = 8 * time.Second
)

// view is what the pool last said.
type view struct {
	at       time.Time // zero: nothing yet
	balances map[string]pool.Balance
}

// of is what the pool entitles a pod to at a time. A pool that cannot be read for longer
// than a lease entitles nobody.
func (v view) of(pod string, now time.Time) pool.Balance {
	if v.at.IsZero() || now.Sub(v.at) > pool.LeaseTTL {
		return pool.Balance{}
	}
	return v.balances[pod]
}

// onLoan says whether anything is on loan.
func (v view) onLoan() bool {
	for _, b := range v.balances {
		if !b.Lent.IsZero() || !b.Borrowed.IsZero() {
			return true
		}
	}
	return false
}

// sample is one container at one moment.
type sample struct {
	pod          string // namespace/name
	owed, limits api.Resources
	// ceiling is the milli CPU that the limit is to be under source node; 0 under owners.
	ceiling int64
	// stranger says that the pod did not opt in, so that its limits are never to change.
	stranger bool
}

// rest is what the CPU limit is while nothing is lent and nobody is held, in milli CPU.
func (s sample) rest() int64 { return max(s.owed.CPUMilli, s.ceiling) }

// away says whether limits differ from what they are at rest in a way that nothing covers:
// neither the balance, nor, of a function with a ceiling, that somebody may hold it to its
// allocation. More memory than is owed harms nobody, and less is against the rules.
func (s sample) away(b pool.Balance, held bool) bool {
	if s.ceiling > 0 {
		return s.limits.CPUMilli != s.rest() && !(held && s.inBounds())
	}
	return s.limits.CPUMilli < s.owed.CPUMilli && b.Lent.CPUMilli == 0 ||
		s.limits.CPUMilli > s.owed.CPUMilli && b.Borrowed.CPUMilli == 0
}

// inBounds says that the CPU limit is one that a function with a ceiling may ever have. One
// without any limit is not.
func (s sample) inBounds() bool {
	return s.limits.CPUMilli >= s.owed.CPUMilli && s.limits.CPUMilli > 0 &&
		s.limits.CPUMilli <= max(s.ceiling, s.owed.CPUMilli+nudgeMilli)
}

// moment is all that is seen at one time.
type moment struct {
	at      time.Time
	source  api.Source // empty with stock
	view    view
	samples []sample
	// weights were all in force at once; none when that could not be seen.
	weights []podWeight
	// agent says that the node agent runs, as far as chaos has not taken it away.
	agent bool
	// changing says that the source is being changed, so that limits may be as either has it.
	changing bool
	busyAt   time.Time // when a request was last under way; zero when none was
}

// weighs says that weights may be other than the kubelet's: under source node an agent gives
// and takes them, by what the pool says, while requests are under way.
func (m moment) weighs() bool {
	return (m.source == api.SourceNode || m.changing) && m.agent && m.at.Sub(m.busyAt) <= weightsRest && !m.view.at.IsZero() && m.at.Sub(m.view.at) <= pool.LeaseTTL+weightsRest
}

// holds says that functions may be held to their allocations: an agent does so while
// others wait, and for some time after.
func (m moment) holds() bool { return m.agent && m.at.Sub(m.busyAt) <= holdRest }

// whole says that all CPU limits are what they are at rest, and all weights the kubelet's.
func (m moment) whole() bool {
	return !slices.ContainsFunc(m.samples, func(s sample) bool { return s.away(pool.Balance{}, false) }) &&
		!slices.ContainsFunc(m.weights, podWeight.moved)
}

// excess is by how many milli CPU the limits add up to more than is owed. That may be anything
// where it is the node's.
func (m moment) excess() int64 {
	var over int64
	for _, s := range m.samples {
		if !s.stranger && s.ceiling == 0 && !m.changing {
			over += s.limits.CPUMilli - s.owed.CPUMilli - nudgeMilli
		}
	}
	return max(0, over)
}

// wrong is what is against the rules at the moment, of single pods.
func (m moment) wrong() []wrong {
	var all []wrong
	for _, s := range m.samples {
		switch {
		case !s.stranger && s.limits.MemoryBytes < s.owed.MemoryBytes:
			all = append(all, wrong{s.pod, fmt.Sprintf("the memory limit of %s was %d bytes, and it is owed %d", s.pod, s.limits.MemoryBytes, s.owed.MemoryBytes)})
		case s.stranger && s.limits != s.owed:
			all = append(all, wrong{s.pod, fmt.Sprintf("the limits of %s, which did not opt in, were %v of %v", s.pod, s.limits, s.owed)})
		case s.stranger, s.ceiling == 0, m.changing, s.inBounds():
		default:
			all = append(all, wrong{s.pod, fmt.Sprintf("the CPU limit of %s was %dm, not from %dm to %dm", s.pod, s.limits.CPUMilli, s.owed.CPUMilli, s.rest())})
		}
	}
	for _, w := range m.weights {
		switch {
		case w.stranger && w.moved():
			all = append(all, wrong{w.name(), fmt.Sprintf("the weight of %s, which did not opt in, was %d of %d", w.pod, w.weight, w.kubelet)})
		case w.belowFloor():
			all = append(all, wrong{w.name(), fmt.Sprintf("the weight of %s was %d of %d, less than an eighth", w.pod, w.weight, w.kubelet)})
		}
	}
	return all
}

// wrong is one thing against the rules: of whom, and what it was.
type wrong struct{ of, what string }
