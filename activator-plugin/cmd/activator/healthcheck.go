package main

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"
)

var errTerminated = errors.New("received SIGTERM from kubelet")

// healthCheck fails from the moment that the activator is told to stop, so that no
// new requests are routed to it, and otherwise as the connection to the autoscaler.
func healthCheck(terminated context.Context, autoscaler func() error, logger *zap.SugaredLogger) func() error {
	logOnce := sync.OnceFunc(func() { logger.Info("Signal context canceled") })
	return func() error {
		if terminated.Err() != nil {
			logOnce()
			return errTerminated
		}
		return autoscaler()
	}
}
