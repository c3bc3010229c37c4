package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
)

// aloneRuns is how often each input runs alone. The median counts.
const aloneRuns = 3

// measureAlone runs each input of the pool alone on the node, at a place without limits,
// and measures how long it takes and how much CPU its function uses without competition.
// The functions that wait for others all run at the same time, with one request each.
// Peaks are measured only if an arm needs to know them.
func (e *evaluate) measureAlone(ctx context.Context, own *demo, p pool, functions []string) ([]evaluation.Alone, error) {
	m, err := own.openMeter(ctx)
	if err != nil {
		return nil, err
	}
	defer m.close()
	of := containers{}
	if m != nil {
		of = m.functions
	}
	for _, f := range functions {
		if m != nil && len(of[f]) != 1 {
			return nil, fmt.Errorf("%d containers of %s run in %s; there must be one, to measure the function alone", len(of[f]), f, own.namespace)
		}
	}
	s := own.newSender()
	defer s.http.CloseIdleConnections()
	var all []evaluation.Alone
	one := func(ctx context.Context, f string) ([]evaluation.Alone, error) {
		var found []evaluation.Alone
		for n, in := range p[f] {
			var took, cpu, cpuPeak, memoryPeak []float64
			for range aloneRuns {
				before := used(of[f])
				stop := func() (none api.Resources) { return none }
				if e.perfect() {
					stop = watchPeaks(of[f][0])
				}
				fate := s.send(ctx, time.Now(), message{host: own.targets.hosts[f], input: in})
				peak := stop()
				if fate.err != "" {
					return nil, fmt.Errorf("input %d of %s, alone: %s", n, f, fate.err)
				}
				took = append(took, milliseconds(fate.took))
				cpu = append(cpu, milliseconds(used(of[f])-before))
				cpuPeak, memoryPeak = append(cpuPeak, float64(peak.CPUMilli)), append(memoryPeak, float64(peak.MemoryBytes))
			}
			found = append(found, evaluation.Alone{
				Function: f, Input: n, Size: int64(len(in.Body)), Milliseconds: median(took), CPUMilliseconds: median(cpu),
				Peak: api.Resources{CPUMilli: int64(median(cpuPeak)), MemoryBytes: int64(median(memoryPeak))},
			})
		}
		return found, nil
	}
	var waits []string
	for _, f := range functions {
		if slices.Contains(waiting, f) {
			waits = append(waits, f)
			continue
		}
		found, err := one(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range waits {
		group.Go(func() error {
			found, err := one(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, found...)
			return err
		})
	}
	return all, group.Wait()
}

// milliseconds returns d in milliseconds, rounded to a hundredth, which is finer than
// anything here is exact to.
func milliseconds(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond).Microseconds()) / 1000
}

// tenths returns d in milliseconds, rounded to a tenth: every request has such values, so
// they must stay short.
func tenths(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond).Microseconds()) / 1000
}

func median(values []float64) float64 {
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
