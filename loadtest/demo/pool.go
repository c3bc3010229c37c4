package main

import (
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"libra.dev/libra/loadtest/functions/inputs"
)

// pool is the inputs that requests have, by function.
type pool map[string][]inputs.Input

// makePool makes this many inputs of each function, most short and some long.
func makePool(seed uint64, functions []string, each int, scale float64) (pool, error) {
	p := pool{}
	for _, f := range functions {
		p[f] = make([]inputs.Input, each)
	}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, f := range functions {
		made := p[f]
		for n := range each {
			group.Go(func() (err error) {
				if made[n], err = inputs.Heavy(f, seed, n, each, scale); err != nil {
					return fmt.Errorf("input %d of %s: %w", n, f, err)
				}
				return nil
			})
		}
	}
	return p, group.Wait()
}

// smallest returns, of each function, the input with the fewest bytes.
func (p pool) smallest() map[string]inputs.Input {
	found := map[string]inputs.Input{}
	for f, all := range p {
		found[f] = slices.MinFunc(all, func(a, b inputs.Input) int { return len(a.Body) - len(b.Body) })
	}
	return found
}
