package queue

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"k8s.io/apimachinery/pkg/types"
)

// meanOf is of about how many requests the mean is that stands for what is not predicted.
const meanOf = 16

// line is that of one revision. There are always as many seekers as requests that wait,
// and each has one of them, though not always the same.
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

// placeOf presumes that mu is held. A request of which nothing is predicted is taken to
// be like those of which something was; without any of those they go as they came.
func (l *line) placeOf(req Request, arrived time.Duration) place {
	predicted := req.Predicted
	if predicted <= 0 {
		predicted = l.mean
	}
	return place{key: keyOf(predicted, arrived, req.Timeout), number: l.came}
}

// note presumes that mu is held.
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

// goFirst says whether a request that has found a slot is to have it, and how many that
// wait it passes by that.
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

// join has a request wait, and returns a seeker that is to be started. It may be another's
// already when it is.
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

// grant returns who is to have the slot that the seeker got; nil for nobody.
func (l *line) grant(s *seeker) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch own := s.waiter; own.state {
	case isWaiting:
		best := heap.Pop(&l.waiting).(*waiter)
		best.state = isServed
		best.passed = l.waiting.pass(best.place)
		// Who is passed waits on with the other's seeker.
		own.seeker, best.seeker = best.seeker, s
		own.seeker.waiter, s.waiter = own, best
		return best
	case isServed: // and tried again
		return own
	default: // it has left at this moment
		return nil
	}
}

// leave takes a request out that does not want to wait any more, and returns its seeker,
// which is to be cancelled. It returns nil when the request does not wait any more.
func (l *line) leave(w *waiter) *seeker {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.state != isWaiting {
		return nil
	}
	l.remove(w)
	return w.seeker
}

// ended returns the request that a seeker had that does not seek any more.
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

// remove presumes that mu is held and that w waits.
func (l *line) remove(w *waiter) {
	heap.Remove(&l.waiting, w.index)
	w.state = isOver
}

// waiting is a heap of those who wait. The places are in it, so that to look at many
// costs little.
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

// pass counts who came before p and still waits.
func (h waiting) pass(p place) (passed int) {
	for i := range h {
		if h[i].number < p.number {
			h[i].waiter.passedBy++
			passed++
		}
	}
	return passed
}
