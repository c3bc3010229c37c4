package main

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap/zaptest"
)

func TestHealthCheck(t *testing.T) {
	disconnected := errors.New("connection has not yet been established")
	for _, tc := range []struct {
		name       string
		terminated bool
		autoscaler error
		want       error
	}{
		{"healthy", false, nil, nil},
		{"no autoscaler", false, disconnected, disconnected},
		{"told to stop", true, nil, errTerminated},
		{"told to stop without autoscaler", true, disconnected, errTerminated},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if tc.terminated {
				cancel()
			}
			check := healthCheck(ctx, func() error { return tc.autoscaler }, zaptest.NewLogger(t).Sugar())
			for range 2 {
				if got := check(); !errors.Is(got, tc.want) {
					t.Errorf("healthCheck() = %v, want %v", got, tc.want)
				}
			}
		})
	}
}

// A server that fails takes the activator out of service as well, while the others drain.
func TestHealthCheckFailsWithAServer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	check := healthCheck(ctx, func() error { return nil }, zaptest.NewLogger(t).Sugar())
	failed := make(chan error, 1)
	failed <- errors.New("serving h2c: address already in use")
	(&servers{failed: failed}).wait(ctx, cancel, zaptest.NewLogger(t).Sugar())
	if got := check(); !errors.Is(got, errTerminated) {
		t.Errorf("healthCheck() = %v, want %v", got, errTerminated)
	}
}
