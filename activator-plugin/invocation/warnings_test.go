package invocation

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
)

// The docs send people to an Event that the API server keeps for an hour, however long the problem lasts.
func TestWarningsAreRepeatedEachHour(t *testing.T) {
	clk, events := clocktesting.NewFakePassiveClock(time.Now()), record.NewFakeRecorder(10)
	m := &Manager{clock: clk, logger: zap.NewNop().Sugar(), events: events, began: clk.Now()}
	for _, passed := range []time.Duration{0, time.Minute, time.Hour, time.Minute} {
		clk.SetTime(clk.Now().Add(passed))
		m.warn(newRevision(), eventNotInPath, "path", "Lending nothing", errors.New("not in the path"))
		want := 0
		if passed == 0 || passed == time.Hour {
			want = 1
		}
		if got := len(events.Events); got != want {
			t.Errorf("%v later: %d Events, want %d", passed, got, want)
		}
		for range len(events.Events) {
			<-events.Events
		}
	}
}
