package main

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"
)

var errTerminated = errors.New("the activator is stopping")

// healthCheck returns a health check that fails once the activator stops, so that no
// new requests are routed to it. Before that, it follows the connection to the
// autoscaler.
func healthCheck(terminated context.Context, autoscaler func() error, logger *zap.SugaredLogger) func() error {
	logOnce := sync.OnceFunc(func() { logger.Info("Failing health checks from now on, to get no new requests") })
	return func() error {
		if terminated.Err() != nil {
			logOnce()
			return errTerminated
		}
		return autoscaler()
	}
}
