package scheduler

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"
	"k8s.io/klog/v2/ktesting"
)

func TestLogsHaveTheirMessageAndError(t *testing.T) {
	sink := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	logger := sugared(sink)
	logger.With("policy", "shop").Warnw("Cannot read it", zap.Error(errors.New("it is gone")))
	logger.Infow("Reading it again", "after", 1)
	got := sink.GetSink().(ktesting.Underlier).GetBuffer().String()
	for _, want := range []string{`Cannot read it err="it is gone" policy="shop"`, `Reading it again after=1`} {
		if !strings.Contains(got, want) {
			t.Errorf("the log has no %q:\n%s", want, got)
		}
	}
}
