package rig

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Each node has a beat in each second, and the beats are spread over the second.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, seconds = 10, 5
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second-time.Millisecond)
		defer cancel()
		start := time.Now()
		var beats [nodes][]time.Duration
		if err := Beat(ctx, nodes, 1, func(_ context.Context, i int) error {
			beats[i] = append(beats[i], time.Since(start))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i, at := range beats {
			if len(at) != seconds {
				t.Fatalf("node %d had %d beats in %d s", i, len(at), seconds)
			}
			for second, at := range at {
				if want := time.Duration(second)*time.Second + time.Duration(i)*time.Second/nodes; at != want {
					t.Errorf("beat %d of node %d is after %v, want %v", second, i, at, want)
				}
			}
		}
	})
}

// Some seconds with an error are made up for, but not more in succession. A beat that hangs counts
// as an error.
func TestBeatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds atomic.Int64
		err := Beat(t.Context(), 1, 1, func(ctx context.Context, _ int) error {
			if rounds.Add(1) == 2 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if want := int64(2 + beatsMissed + 1); !errors.Is(err, context.DeadlineExceeded) || rounds.Load() != want {
			t.Errorf("%v after %d rounds, want an error of the deadline after %d", err, rounds.Load(), want)
		}
	})
}
