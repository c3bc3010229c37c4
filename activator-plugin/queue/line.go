package queue

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
)

// meanOf is about how many requests make up the mean, which replaces a missing prediction.
const meanOf = 16

// line is that of one revision. It always has as many seekers as waiting requests. Each
// seeker has one of the requests, though not always the same.
type line struct {
	// The attributes of what is counted.
	shortestFirst, fifo []metric.RecordOption
	overtaken           []metric.AddOption

	mu      sync.Mutex
	waiting waiting
	came    uint64 // how many have come to wait
	mean    time.Duration
	used    time.Duration // when a request last came
}

func newLine(revID types.NamespacedName, now time.Duration) *line {
	l := &line{used: now}
	l.shortestFirst, l.fifo, l.overtaken = optionsOf(revID)
	return l
}

func (l *line) idle(now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) == 0 && now-l.used > forgetAfter
}

// placeOf returns the place of a request that has arrived. A request without a prediction
// counts as the mean of those with one; if there are none, requests go as they came. The
// caller must hold mu.
func (l *line) placeOf(req Request, arrived time.Duration) place {
	predicted := req.Predicted
	if predicted <= 0 {
		predicted = l.mean
	}
	return place{key: keyOf(predicted, arrived, req.Timeout), number: l.came}
}

// note updates used and mean. The caller must hold mu.
func (l *line) note(req Request, arrived time.Duration) {
	l.used = max(l.used, arrived)
	switch {
	case req.Predicted <= 0:
	case l.mean == 0:
		l.mean = req.Predicted
	default:
		l.mean += (req.Predicted - l.mean) / meanOf
	}
}

// goFirst reports whether a request that has found a slot is to have it, and how many
// waiting requests it thereby passes.
func (l *line) goFirst(req Request, arrived time.Duration) (passed int, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.placeOf(req, arrived)
	if len(l.waiting) > 0 && l.waiting[0].before(p) {
		return 0, false
	}
	l.note(req, arrived)
	return l.waiting.pass(p), true
}

// join adds a request to the line. The caller must start the seeker, which may already be
// another request's by then.
func (l *line) join(req Request, arrived time.Duration, cancel context.CancelFunc) (*waiter, *seeker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &waiter{
		line:    l,
		place:   l.placeOf(req, arrived),
		events:  make(chan event, 1),
		replies: make(chan error, 1),
	}
	s := &seeker{line: l, waiter: w, cancel: cancel}
	w.seeker = s
	l.came++
	l.note(req, arrived)
	heap.Push(&l.waiting, w)
	return w, s
}

// grant returns the request that is to have the seeker's slot; nil for none.
func (l *line) grant(s *seeker) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch own := s.waiter; own.state {
	case isWaiting:
		best := heap.Pop(&l.waiting).(*waiter)
		best.state = isServed
		best.passed = l.waiting.pass(best.place)
		// The request that is passed waits on with the other's seeker.
		own.seeker, best.seeker = best.seeker, s
		own.seeker.waiter, s.waiter = own, best
		return best
	case isServed: // and tried again
		return own
	default: // it has left at this moment
		return nil
	}
}

// leave removes a request that gives up, and returns its seeker, which the caller must
// cancel. It returns nil when the request does not wait any more.
func (l *line) leave(w *waiter) *seeker {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.state != isWaiting {
		return nil
	}
	l.remove(w)
	return w.seeker
}

// ended returns the request of a seeker that has ended, and removes it if it waits.
func (l *line) ended(s *seeker) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.waiter.state == isWaiting {
		l.remove(s.waiter)
	}
	return s.waiter
}

// abandon keeps a request from being served again.
func (l *line) abandon(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.state = isOver
}

// remove takes out w, which must be waiting. The caller must hold mu.
func (l *line) remove(w *waiter) {
	heap.Remove(&l.waiting, w.index)
	w.state = isOver
}

// waiting is a heap of the waiting requests. It has the places themselves, so that looking
// at many costs little.
type waiting []waitingAt

type waitingAt struct {
	place
	waiter *waiter
}

func (h waiting) Len() int { return len(h) }

func (h waiting) Less(i, j int) bool { return h[i].before(h[j].place) }

func (h waiting) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].waiter.index, h[j].waiter.index = i, j
}

func (h *waiting) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, waitingAt{w.place, w})
}

func (h *waiting) Pop() any {
	last := len(*h) - 1
	w := (*h)[last].waiter
	(*h)[last] = waitingAt{}
	*h = (*h)[:last]
	return w
}

// pass counts the waiting requests that came before p, and adds to each one's passedBy.
func (h waiting) pass(p place) (passed int) {
	for i := range h {
		if h[i].number < p.number {
			h[i].waiter.passedBy++
			passed++
		}
	}
	return passed
}
