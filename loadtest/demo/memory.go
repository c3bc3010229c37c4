package main

import (
	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/loadtest/functions/inputs"
)

const (
	// memoryFunction is dnavisualization under another name, with a memory limit that fits
	// its usual inputs.
	memoryFunction = "sequences"
	memoryOf       = "dnavisualization"
	// One of memoryRare inputs is large, with memoryLarge bases: the function takes 200
	// MiB for it, and less than 64 for usual ones.
	memoryRare  = 20
	memoryLarge = 4 << 20
)

// memoryPool makes the inputs of the function that is short of memory: usual ones, and one
// large one in twenty.
func memoryPool(seed uint64, each int) (pool, error) {
	each = max(memoryRare, each/memoryRare*memoryRare)
	usual, err := makePool(seed, []string{memoryOf}, each-each/memoryRare, 1)
	if err != nil {
		return nil, err
	}
	all := usual[memoryOf]
	for n := len(all); n < each; n++ {
		in, err := inputs.Sized(memoryOf, seed, uint64(n), memoryLarge)
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return pool{memoryFunction: all}, nil
}

// memoryCPU returns the mean CPU of such an input in milliseconds, from what its function
// used alone: it is proportional to the size.
func memoryCPU(alone []evaluation.Alone, p pool) float64 {
	var cpu, bytes, sent float64
	for _, a := range alone {
		if a.Function == memoryOf {
			cpu, bytes = cpu+a.CPUMilliseconds, bytes+float64(a.Size)
		}
	}
	for _, in := range p[memoryFunction] {
		sent += float64(len(in.Body))
	}
	if bytes == 0 {
		return 0
	}
	return cpu / bytes * sent / float64(len(p[memoryFunction]))
}
