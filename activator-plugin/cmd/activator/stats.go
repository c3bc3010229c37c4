package main

import (
	"sync"

	"go.uber.org/zap"

	"knative.dev/serving/pkg/activator"
	asmetrics "knative.dev/serving/pkg/autoscaler/metrics"
)

// startStats sends to the sink what report, which ends when its argument is closed, puts into
// stats. stop waits for that before it closes stats: report has something to say for seconds
// after the last request, in which Libra's Ends are sent, and would send on a closed channel.
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
