package main

import (
	"testing"
	"time"

	"libra.dev/libra/pkg/api"
)

func TestPeaks(t *testing.T) {
	const ms = time.Millisecond
	// use is the CPU time in each 10 ms.
	of := func(use ...time.Duration) (samples []peakSample) {
		at, cpu := time.Unix(0, 0), time.Second
		samples = append(samples, peakSample{at, cpu, 100})
		for i, u := range use {
			at, cpu = at.Add(peakEvery), cpu+u
			samples = append(samples, peakSample{at, cpu, int64(100 + i%3)})
		}
		return samples
	}
	repeat := func(n int, u time.Duration) (all []time.Duration) {
		for range n {
			all = append(all, u)
		}
		return all
	}
	for name, c := range map[string]struct {
		samples []peakSample
		want    api.Resources
	}{
		"none":     {nil, api.Resources{}},
		"one":      {of(), api.Resources{MemoryBytes: 100}},
		"short":    {of(10*ms, 20*ms), api.Resources{CPUMilli: 1500, MemoryBytes: 101}},
		"steady":   {of(repeat(50, 5*ms)...), api.Resources{CPUMilli: 500, MemoryBytes: 102}},
		"one rise": {of(append(append(repeat(20, 1*ms), repeat(10, 20*ms)...), repeat(20, 1*ms)...)...), api.Resources{CPUMilli: 2000, MemoryBytes: 102}},
		"a spike":  {of(append(repeat(20, 0), append([]time.Duration{20 * ms}, repeat(20, 0)...)...)...), api.Resources{CPUMilli: 200, MemoryBytes: 102}},
	} {
		if got := peakOf(c.samples); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
