package placement

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"k8s.io/utils/clock"
)

// Where no request is placed by the picture, it is refreshed just often enough to be known when one is.
func TestAPictureThatNobodyUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{clock: clock.RealClock{}}
		p := newPicture(t, s, clock.RealClock{}, zap.NewNop())
		slots := NewSlots(p, nil)
		slots.SetPod(revID, readyPod(0, "a"))
		take := func(ask Ask) {
			ask.Now = time.Now()
			slots.Of(revID, 1).Take(dest(0), ask).Release()
			synctest.Wait()
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go p.Run(ctx)
		for range 3 {
			time.Sleep(idleAfter + time.Second)
			s.wasAsked()
			take(Ask{}) // Knative decides
			time.Sleep(10 * time.Second)
			asked := s.wasAsked()
			if longest := longestBetween(asked); len(asked) > 11 || longest >= oldestPicture {
				t.Errorf("asked %d times in 10 s, and not for %v; want every second", len(asked), longest)
			}
			take(Ask{Policy: Hash})
			if n := len(s.wasAsked()); n != 1 {
				t.Errorf("asked %d times as soon as a request is placed, want once", n)
			}
			time.Sleep(idleAfter)
			if longest := longestBetween(s.wasAsked()); longest > refreshEvery+refreshJitter {
				t.Errorf("within a minute of that not asked for %v", longest)
			}
		}
	})
}
