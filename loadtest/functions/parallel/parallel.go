// Package parallel lets the functions use the cores that they get: as many
// workers as the work is worth, so that a small request uses one core and a large
// one all that its container may use.
package parallel

import (
	"context"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Workers returns one, plus one for each perWorker of work, up to GOMAXPROCS.
func Workers(work, perWorker int) int {
	return min(1+work/perWorker, runtime.GOMAXPROCS(0))
}

// Do calls do once for each block from 0 to blocks-1, on that many workers, until
// a call fails or ctx ends. Blocks are taken in order.
func Do(ctx context.Context, workers, blocks int, do func(block int) error) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(workers, blocks) {
		g.Go(func() error {
			for {
				if err := ctx.Err(); err != nil {
					return err
				}
				block := int(next.Add(1)) - 1
				if block >= blocks {
					return nil
				}
				if err := do(block); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// Range returns the block'th of blocks equal parts of 0 to n.
func Range(block, blocks, n int) (from, to int) {
	return block * n / blocks, (block + 1) * n / blocks
}
