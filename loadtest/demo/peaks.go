package main

import (
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

const (
	peakEvery = 10 * time.Millisecond
	// peakWindow is the window over which CPU use is averaged, as in Libra's own peaks: the
	// period of a CPU quota.
	peakWindow = 100 * time.Millisecond
)

// peakSample is a container's CPU time and memory at a time.
type peakSample struct {
	at     time.Time
	cpu    time.Duration
	memory int64
}

// watchPeaks reads a container until stop is called, which returns the container's peak
// use. Nobody else may read the container meanwhile.
func watchPeaks(c cgroup.Container) (stop func() api.Resources) {
	end, done := make(chan struct{}), make(chan struct{})
	var samples []peakSample
	read := func() {
		if r, err := c.Read(); err == nil {
			samples = append(samples, peakSample{time.Now(), r.CPU, r.Memory})
		}
	}
	go func() {
		defer close(done)
		ticker := time.NewTicker(peakEvery)
		defer ticker.Stop()
		read()
		for {
			select {
			case <-end:
				read()
				return
			case <-ticker.C:
				read()
			}
		}
	}()
	return func() api.Resources {
		close(end)
		<-done
		return peakOf(samples)
	}
}

// peakOf returns the most CPU over any peakWindow, or over all samples if they are shorter,
// and the most memory.
func peakOf(samples []peakSample) (peak api.Resources) {
	from := 0
	for i, s := range samples {
		peak.MemoryBytes = max(peak.MemoryBytes, s.memory)
		for from+1 < i && s.at.Sub(samples[from+1].at) >= peakWindow {
			from++
		}
		if passed := s.at.Sub(samples[from].at); passed >= peakWindow || i == len(samples)-1 && from == 0 && passed > 0 {
			used := s.cpu - samples[from].cpu
			peak.CPUMilli = max(peak.CPUMilli, int64(1000*used.Seconds()/max(passed, peakEvery).Seconds()+0.5))
		}
	}
	return peak
}
