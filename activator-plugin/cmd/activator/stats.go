package main

import (
	"sync"

	"go.uber.org/zap"

	"knative.dev/serving/pkg/activator"
	asmetrics "knative.dev/serving/pkg/autoscaler/metrics"
)

// startStats runs report, which ends when its argument is closed, and sends what it puts into
// stats to the sink. stop waits for report before it closes stats: report goes on sending for
// seconds after the last request, while Libra's Ends are sent, and would send on a closed
// channel.
func startStats(stats chan []asmetrics.StatMessage, report func(<-chan struct{}), sink activator.RawSender, logger *zap.SugaredLogger) (stop func()) {
	go activator.ReportStats(logger, sink, stats)
	stopped := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { report(stopped) })
	return func() {
		close(stopped)
		reporting.Wait()
		close(stats)
	}
}
