package invocation

import (
	"context"
	"slices"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/pkg/pool"
)

// lingerFor is how long an End waits at most for a Begin. It is less than the time for which the agent
// assumes that a pod that has used CPU has a request in it.
const lingerFor = 50 * time.Millisecond

// alongMost bounds how many Ends go with a Begin, and so how long it takes: a pod that dies may end a
// thousand at once.
const alongMost = 64

// lingering is an End that waits for the next Begin on its node, to be sent with it. Sent by itself, it
// would cost the activator, Redis and the agent about as much as the Begin does.
type lingering struct {
	ending pool.Ending
	since  time.Time
	flight *flight
	answer chan endAnswer // carries one
}

// endAnswer is the answer to an End that was sent with a Begin.
type endAnswer struct {
	outcome pool.Outcome
	err     error
	took    time.Duration
}

// mayLinger reports whether the End may wait. Nothing waits for it if the invocation borrows nothing, and
// lends nothing but memory, which its pod does not use in the meantime. The End of a quick one does not
// wait: most invocations that follow it in its pod are not reported, and their CPU would count for the quick
// one.
func (f *flight) mayLinger() bool { return f.inv.Ranked && f.inv.Want.IsZero() && !f.quick }

// linger waits until a Begin has taken the End along. After lingerFor the End is to be sent by itself, and
// linger sets its Ago. ended reports whether the pool has answered, and sent whether the End was sent.
func (f *flight) linger(e *pool.Ending) (ended, sent bool) {
	l := &lingering{ending: *e, since: f.clock.Now(), flight: f, answer: make(chan endAnswer, 1)}
	f.mu.Lock()
	if f.awaited { // the Begin may have looked for it already
		f.mu.Unlock()
		return false, false
	}
	f.lingering[f.node] = append(f.lingering[f.node], l)
	f.mu.Unlock()
	timer := f.clock.NewTimer(lingerFor)
	defer timer.Stop()
	var answer endAnswer
	select {
	case answer = <-l.answer:
	case <-timer.C():
		if f.leave(f.node, l) {
			e.Ago = f.clock.Since(l.since)
			return false, false
		}
		answer = <-l.answer
	}
	span := f.span(spanEnd)
	defer span.End()
	return f.onEnd(span, answer.outcome, answer.err, answer.took), true
}

// leave withdraws an End. It returns false if a Begin has taken it along.
func (l *lifecycle) leave(node string, end *lingering) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.lingering[node], end)
	if i < 0 {
		return false
	}
	l.keepLingering(node, slices.Delete(l.lingering[node], i, i+1))
	return true
}

// takeAlong takes Ends that wait on a node, alongMost at most. With a before that is not nil, it takes Ends
// only if the one whose answer closes before is among them, and takes that one.
func (l *lifecycle) takeAlong(node string, before <-chan struct{}) (taken []*lingering, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends := l.lingering[node]
	if before != nil {
		i := slices.IndexFunc(ends, func(end *lingering) bool { return end.flight.answered == before })
		if i < 0 {
			return nil, false
		}
		ends[0], ends[i] = ends[i], ends[0]
	}
	n := min(len(ends), alongMost)
	l.keepLingering(node, ends[n:])
	return ends[:n], true
}

func (l *lifecycle) keepLingering(node string, ends []*lingering) {
	if len(ends) == 0 {
		delete(l.lingering, node)
		return
	}
	l.lingering[node] = ends
}

// callBegin sends a Begin and the Ends that it takes along, and hands these the answer.
func (f *flight) callBegin(ctx context.Context, inv pool.Invocation, along []*lingering) (api.Resources, error) {
	if len(along) == 0 {
		return f.pool.Begin(ctx, f.node, inv)
	}
	started := f.clock.Now()
	endings := make([]pool.Ending, len(along))
	for i, end := range along {
		endings[i] = end.ending
		endings[i].Ago = started.Sub(end.since)
	}
	outcomes, borrowed, err := f.pool.BeginAfter(ctx, f.node, endings, inv)
	for i, end := range along {
		answer := endAnswer{err: err, took: f.clock.Since(started)}
		if err == nil {
			answer.outcome = outcomes[i]
		}
		end.answer <- answer
	}
	return borrowed, err
}
