package queue

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// forgetAfter is how long a revision is remembered to which no request comes, and
	// forgetEvery how often those to forget are looked for.
	forgetAfter = 10 * time.Minute
	forgetEvery = time.Minute
)

// Lines are the requests that wait, a line for each revision.
type Lines struct {
	clock   clock.PassiveClock
	epoch   time.Time
	request func(ctx context.Context, revision types.NamespacedName) Request
	metrics *metrics

	mu        sync.RWMutex
	lines     map[types.NamespacedName]*line
	forgotten time.Duration // when revisions were last forgotten
}

// New returns Lines in which nobody waits.
func New(o Options) (*Lines, error) {
	m, err := newMetrics(o.MeterProvider)
	if err != nil {
		return nil, err
	}
	return &Lines{
		clock:   o.Clock,
		epoch:   o.Clock.Now(),
		request: o.Request,
		metrics: m,
		lines:   map[types.NamespacedName]*line{},
	}, nil
}

// now is the time since the Lines were made.
func (l *Lines) now() time.Duration { return l.clock.Since(l.epoch) }

// of returns the line of a revision, to which a request has just come.
func (l *Lines) of(revID types.NamespacedName, now time.Duration) *line {
	l.mu.RLock()
	found := l.lines[revID]
	l.mu.RUnlock()
	if found != nil {
		return found
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.lines[revID]; found != nil {
		return found
	}
	if now-l.forgotten >= forgetEvery {
		l.forgotten = now
		// A request that has just found such a line is ordered without those that come
		// next, and that is all.
		maps.DeleteFunc(l.lines, func(_ types.NamespacedName, line *line) bool { return line.idle(now) })
	}
	made := newLine(revID, now)
	l.lines[revID] = made
	return made
}
