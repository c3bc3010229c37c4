package main

import (
	"fmt"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

const (
	// nudgeMilli is by how much the resizer raises a limit for a moment, where an agent is
	// gone, so that the kubelet writes it: docs/resizer.md.
	nudgeMilli = 1

	// weightsRest is how long weights may differ from the kubelet's after the last answer, or
	// after the pool was lost: the agent weighs every 100 ms, and takes a pod that uses CPU
	// for one with a request.
	weightsRest = time.Second
	// holdRest is how long functions may be held after the last answer: 6.4 s at most, and a
	// second to get back what they had (docs/sources.md).
	holdRest = 8 * time.Second
)

// view is the pool's last answer.
type view struct {
	at       time.Time // zero: nothing yet
	balances map[string]pool.Balance
}

// of returns the balance of a pod at a time. Once the pool has not been read for longer than a
// lease, no pod has one.
func (v view) of(pod string, now time.Time) pool.Balance {
	if v.at.IsZero() || now.Sub(v.at) > pool.LeaseTTL {
		return pool.Balance{}
	}
	return v.balances[pod]
}

// onLoan reports whether anything is on loan.
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
	// ceiling is the CPU limit that the container should have under source node, in milli CPU;
	// 0 under owners.
	ceiling int64
	// stranger means that the pod did not opt in, so that its limits must never change.
	stranger bool
}

// rest returns the CPU limit, in milli CPU, while nothing is lent and nothing is held.
func (s sample) rest() int64 { return max(s.owed.CPUMilli, s.ceiling) }

// away reports whether the limits differ from those at rest by more than what covers that: the
// amounts of the balance or, for a function with a ceiling, that it may be held. More memory
// than is owed harms nobody; less is against the rules.
func (s sample) away(b pool.Balance, held bool) bool {
	if s.ceiling > 0 {
		return s.limits.CPUMilli != s.rest() && !(held && s.inBounds())
	}
	return s.limits.CPUMilli < s.owed.CPUMilli-b.Lent.CPUMilli ||
		s.limits.CPUMilli > s.owed.CPUMilli+b.Borrowed.CPUMilli
}

// inBounds reports whether the CPU limit is one that a function with a ceiling may ever have.
// No limit at all is not.
func (s sample) inBounds() bool {
	return s.limits.CPUMilli >= s.owed.CPUMilli && s.limits.CPUMilli > 0 &&
		s.limits.CPUMilli <= max(s.ceiling, s.owed.CPUMilli+nudgeMilli)
}

// moment is everything seen at one time.
type moment struct {
	at      time.Time
	source  api.Source // empty with stock
	view    view
	samples []sample
	// weights were all in force at once; nil if that could not be seen.
	weights []podWeight
	// agent means that the node agent runs, as far as chaos has not taken it away.
	agent bool
	// changing means that the source is being changed, so that limits may follow either one.
	changing bool
	busyAt   time.Time // when a request was last in flight; zero if none was
}

// weighs reports whether weights may differ from the kubelet's: under source node an agent
// sets them by the pool's state while requests are in flight.
func (m moment) weighs() bool {
	return (m.source == api.SourceNode || m.changing) && m.agent && m.at.Sub(m.busyAt) <= weightsRest && !m.view.at.IsZero() && m.at.Sub(m.view.at) <= pool.LeaseTTL+weightsRest
}

// holds reports whether functions may be held: an agent does that while bystanders wait, and
// for some time after.
func (m moment) holds() bool { return m.agent && m.at.Sub(m.busyAt) <= holdRest }

// whole reports whether all CPU limits are as at rest and all weights are the kubelet's.
func (m moment) whole() bool {
	return !slices.ContainsFunc(m.samples, func(s sample) bool { return s.away(pool.Balance{}, false) }) &&
		!slices.ContainsFunc(m.weights, podWeight.moved)
}

// excess returns by how many milli CPU the limits add up to more than is owed. Functions with
// a ceiling do not count: the node may give them any amount.
func (m moment) excess() int64 {
	var over int64
	for _, s := range m.samples {
		if !s.stranger && s.ceiling == 0 && !m.changing {
			over += s.limits.CPUMilli - s.owed.CPUMilli - nudgeMilli
		}
	}
	return max(0, over)
}

// wrong lists the rules that single pods break at the moment.
func (m moment) wrong() []wrong {
	var all []wrong
	for _, s := range m.samples {
		switch {
		case !s.stranger && s.owed.CPUMilli > 0 && s.limits.CPUMilli <= 0:
			all = append(all, wrong{s.pod, fmt.Sprintf("%s had no CPU limit", s.pod)})
		case !s.stranger && s.limits.MemoryBytes < s.owed.MemoryBytes:
			all = append(all, wrong{s.pod, fmt.Sprintf("the memory limit of %s was %d bytes, below the %d that it is owed", s.pod, s.limits.MemoryBytes, s.owed.MemoryBytes)})
		case s.stranger && s.limits != s.owed:
			all = append(all, wrong{s.pod, fmt.Sprintf("the limits of %s, which did not opt in, were %v, not %v", s.pod, s.limits, s.owed)})
		case s.stranger, s.ceiling == 0, m.changing, s.inBounds():
		default:
			all = append(all, wrong{s.pod, fmt.Sprintf("the CPU limit of %s was %dm, not from %dm to %dm", s.pod, s.limits.CPUMilli, s.owed.CPUMilli, s.rest())})
		}
	}
	for _, w := range m.weights {
		switch {
		case w.stranger && w.moved():
			all = append(all, wrong{w.name(), fmt.Sprintf("the weight of %s, which did not opt in, was %d, not %d", w.pod, w.weight, w.kubelet)})
		case w.belowFloor():
			all = append(all, wrong{w.name(), fmt.Sprintf("the weight of %s was %d of the kubelet's %d, less than an eighth", w.pod, w.weight, w.kubelet)})
		}
	}
	return all
}

// wrong is one broken rule: the pod or weight that breaks it, and how.
type wrong struct{ of, what string }
