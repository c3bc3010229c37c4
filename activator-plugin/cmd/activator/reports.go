package main

import (
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"libra.dev/libra/activator-plugin/invocation"
	"libra.dev/libra/activator-plugin/predict"
	"libra.dev/libra/pkg/report"
)

// newReportSender returns the sender of the manager's counts, on which the resizer
// reports.
func newReportSender(store report.Store, owner string, manager *invocation.Manager, predictor *predict.Client, logger *zap.SugaredLogger) *report.Sender {
	return &report.Sender{
		Clock:  clock.RealClock{},
		Store:  store,
		Writer: owner,
		Drain:  func() report.Record { return manager.Counted(predictor.Stage) },
		OnError: func(err error) {
			if err != nil {
				logger.Warnw("Failed to report what functions could lend; trying again until Redis accepts the report", zap.Error(err))
				return
			}
			logger.Info("Resumed reporting what functions could lend")
		},
	}
}
