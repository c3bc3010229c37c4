package parallel

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func TestDoTakesEachBlockOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers, blocks := rapid.IntRange(1, 8).Draw(t, "workers"), rapid.IntRange(0, 50).Draw(t, "blocks")
		taken := make([]atomic.Int32, blocks)
		if err := Do(context.Background(), workers, blocks, func(b int) error { taken[b].Add(1); return nil }); err != nil {
			t.Fatal(err)
		}
		for b := range taken {
			if n := taken[b].Load(); n != 1 {
				t.Fatalf("block %d was taken %d times", b, n)
			}
		}
	})
}

func TestDoEndsWithItsRequestAndWithAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Do(ctx, 2, 10, func(int) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a client that went away", err)
	}
	broken := errors.New("broken")
	if err := Do(context.Background(), 2, 10, func(b int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the block's error", err)
	}
}

func TestRangesFollowEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks, n := rapid.IntRange(1, 20).Draw(t, "blocks"), rapid.IntRange(0, 1000).Draw(t, "n")
		last := 0
		for b := range blocks {
			from, to := Range(b, blocks, n)
			if from != last || to < from {
				t.Fatalf("part %d of %d is %d to %d after %d", b, blocks, from, to, last)
			}
			last = to
		}
		if last != n {
			t.Fatalf("the parts end at %d, not %d", last, n)
		}
	})
}
