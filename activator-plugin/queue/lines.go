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
	// forgetAfter is how long a revision without requests is remembered, and
	// forgetEvery is how often revisions are forgotten.
	forgetAfter = 10 * time.Minute
	forgetEvery = time.Minute
)

// Lines are the waiting requests, in a line for each revision.
type Lines struct {
	clock   clock.PassiveClock
	epoch   time.Time
	request func(ctx context.Context, revision types.NamespacedName) Request
	metrics *metrics

	mu        sync.RWMutex
	lines     map[types.NamespacedName]*line
	forgotten time.Duration // when revisions were last forgotten
}

// New returns Lines in which no request waits.
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

// now returns the time since the Lines were made.
func (l *Lines) now() time.Duration { return l.clock.Since(l.epoch) }

// of returns the line of a revision that a request has just come to.
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
		// At worst, a request that has just found such a line is ordered without those
		// that come next.
		maps.DeleteFunc(l.lines, func(_ types.NamespacedName, line *line) bool { return line.idle(now) })
	}
	made := newLine(revID, now)
	l.lines[revID] = made
	return made
}
