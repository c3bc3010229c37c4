package pooltest

import (
	"context"
	"testing"

	testingclock "k8s.io/utils/clock/testing"
)

func TestMemoryEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := NewMemory(testingclock.NewFakePassiveClock(epoch)).Read(ctx, "node"); err == nil {
		t.Error("a call with an ended context succeeded")
	}
}
