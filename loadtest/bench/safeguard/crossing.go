package main

import (
	"sort"
	"time"
)

// The node agent's threshold for near the limit: a share of what the limit allows
// in any window.
const (
	window       = 100 * time.Millisecond
	thresholdNum = 4
	thresholdDen = 5
)

// sample is the CPU time that a container had used at a moment.
type sample struct {
	at   time.Time
	used time.Duration
}

// crossing returns when the CPU used within the last window, or since the first
// sample if that is later, reached the threshold of a limit. The kernel accounts
// for a running thread a tick at a time, so that readings jump. seen is the sample
// that showed the crossing. at is the moment before that when one thread, running
// all the time, would have reached the threshold.
func crossing(samples []sample, limitMilli int64) (at, seen time.Time, ok bool) {
	threshold := window * time.Duration(limitMilli) / 1000 * thresholdNum / thresholdDen
	for i, s := range samples {
		excess := s.used - usedBy(samples[:i+1], s.at.Add(-window)) - threshold
		if i > 0 && excess >= 0 {
			at = s.at.Add(-excess)
			return at, s.at, true
		}
	}
	return at, seen, false
}

// usedBy returns the CPU time used by a moment, linear between samples.
func usedBy(samples []sample, t time.Time) time.Duration {
	after := sort.Search(len(samples), func(i int) bool { return samples[i].at.After(t) })
	if after == 0 {
		return samples[0].used
	}
	if after == len(samples) {
		return samples[after-1].used
	}
	a, b := samples[after-1], samples[after]
	share := float64(t.Sub(a.at)) / float64(b.at.Sub(a.at))
	return a.used + time.Duration(share*float64(b.used-a.used))
}
