package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"libra.dev/libra/loadtest/demo/schedule"
	"libra.dev/libra/loadtest/trace"
)

// newDraw makes some inputs for each of functions: those of the demo's schedule
// with the seed.
func newDraw(seed uint64, perFunction int, functions []string, corpus []byte) (trace.Draw, error) {
	for length := time.Minute; ; length *= 2 {
		drawn := map[string][]schedule.Request{}
		for _, r := range schedule.Generate(seed, length, corpus) {
			drawn[r.Function] = append(drawn[r.Function], r)
		}
		enough := true
		for _, f := range functions {
			if len(drawn[f]) == 0 {
				return nil, fmt.Errorf("no inputs for function %q; there are for %v", f, slices.Sorted(maps.Keys(drawn)))
			}
			enough = enough && len(drawn[f]) >= perFunction
		}
		if enough {
			return func(function string, n int) (trace.Input, error) {
				r := drawn[function][n]
				if r.Body != "" {
					return trace.Input{Body: []byte(r.Body), Expect: r.Expect}, nil
				}
				return trace.Input{Body: corpus[r.Offset : r.Offset+r.Size], Cut: true, Offset: r.Offset, Expect: r.Expect}, nil
			}, nil
		}
	}
}
