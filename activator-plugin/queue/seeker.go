package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"k8s.io/apimachinery/pkg/types"
	activatorhandler "knative.dev/serving/pkg/activator/handler"
)

// errNobody gives back a slot that came for a request that has just left.
var errNobody = errors.New("the request does not wait any more")

// seeker waits in Knative's throttler on behalf of some request of a line.
type seeker struct {
	line   *line
	waiter *waiter // gets the seeker's error; guarded by the line
	cancel context.CancelFunc
}

// seek returns after its request was served, was refused, or has gone. A panic of the
// throttler goes to the request's goroutine, which may panic, as every request's may.
func (s *seeker) seek(ctx context.Context, next activatorhandler.Throttler, revID types.NamespacedName) {
	e := event{ended: true}
	defer func() {
		if p := recover(); p != nil {
			e.panicked = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
		}
		s.cancel()
		s.line.ended(s).events <- e
	}()
	e.err = next.Try(ctx, revID, s.onSlot)
}

// onSlot holds the slot while the request that goes first uses it.
func (s *seeker) onSlot(dest string, isClusterIP bool) error {
	w := s.line.grant(s)
	if w == nil {
		return errNobody
	}
	w.events <- event{dest: dest, isClusterIP: isClusterIP}
	return <-w.replies
}
