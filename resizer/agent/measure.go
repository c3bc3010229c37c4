package agent

import (
	"sort"
	"time"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

const (
	// sampleEvery is how often a container is read.
	sampleEvery = 25 * time.Millisecond
	// rankedEvery is the interval for a container whose CPU comes from the source node: it needs
	// nothing back in a hurry.
	rankedEvery = 2 * sampleEvery
	// restEvery is the interval for a container that rests, when the agent is told of requests that
	// begin in it. It is how soon the agent notices requests that it is not told of.
	restEvery = 100 * time.Millisecond
	// sleepEvery is the interval for a container that sleeps, unless more than half of its memory is
	// in use. Reading each of a hundred sleeping containers ten times a second was most of what the
	// agent did on a node at rest.
	sleepEvery = 500 * time.Millisecond
	// peakWindow is the time over which CPU use is averaged: the period of a CPU quota, within which
	// the kernel does not care how use is spread.
	peakWindow = 100 * time.Millisecond
	// leftOutEvery is the interval for a container in which requests are known to be, none of which is
	// to be observed.
	leftOutEvery = 200 * time.Millisecond
	// longestGap is the longest time between two samples in which no peak could hide.
	longestGap = 250 * time.Millisecond
)

// together lengthens a wait by less than sampleEvery, so that work that is not urgent happens at
// the same time: waking up costs the agent as much as most of what it wakes up for.
func together(now time.Time, wait time.Duration) time.Duration {
	if wait < rankedEvery {
		return wait
	}
	end := time.Duration(now.Add(wait).UnixNano())
	return wait + (sampleEvery-end%sampleEvery)%sampleEvery
}

// sample is a reading and its time.
type sample struct {
	at time.Time
	cgroup.Reading
}

// measurement is what an invocation was seen to use. Use between two samples is taken to be even,
// so the CPU time is off by part of what was used between the two samples around each edge. That is
// at most sampleEvery on each CPU: much for a request that uses no more than that, and nothing for
// a longer one.
type measurement struct {
	peak           api.Resources
	cpuTime        time.Duration
	limit          api.Resources // least in force; zero where there was none
	limitAtPeak    api.Resources // in force at the peak; zero where there was none
	throttledShare float64       // 0 to 1
}

// measure measures the time between from and to. ok is false when the samples, which are in order
// of time, do not cover it. Peak CPU is never averaged over less time than shortest.
func measure(samples []sample, from, to time.Time, shortest time.Duration) (m measurement, ok bool) {
	first := sort.Search(len(samples), func(i int) bool { return samples[i].at.After(from) }) - 1
	last := sort.Search(len(samples), func(i int) bool { return !samples[i].at.Before(to) })
	if first < 0 || last == len(samples) || !from.Before(to) {
		return m, false
	}
	samples = samples[first : last+1]

	for i, s := range samples {
		if i > 0 && s.at.Sub(samples[i-1].at) > longestGap {
			return m, false
		}
		switch {
		case i == 0 || s.Memory > m.peak.MemoryBytes:
			m.peak.MemoryBytes, m.limitAtPeak.MemoryBytes = s.Memory, s.Limit.MemoryBytes
		case s.Memory == m.peak.MemoryBytes:
			m.limitAtPeak.MemoryBytes = most(m.limitAtPeak.MemoryBytes, s.Limit.MemoryBytes)
		}
		m.limit.CPUMilli = least(m.limit.CPUMilli, s.Limit.CPUMilli)
		m.limit.MemoryBytes = least(m.limit.MemoryBytes, s.Limit.MemoryBytes)
	}
	m.peak.CPUMilli, m.limitAtPeak.CPUMilli = peakCPUMilli(samples, from, to, shortest)
	m.cpuTime = time.Duration(between(samples, from, to, cpuOf) + 0.5)
	m.throttledShare = min(1, between(samples, from, to, throttledOf)/float64(to.Sub(from)))
	return m, true
}

// least returns the smaller of two limits, where 0 means none.
func least(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// most returns the larger of two limits, where 0 means none.
func most(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// peakCPUMilli returns the most CPU used in any peakWindow between from and to, and the limit in
// force then. The first and the last sample enclose that time.
func peakCPUMilli(samples []sample, from, to time.Time, shortest time.Duration) (peak, limit int64) {
	if to.Sub(from) <= peakWindow {
		// So short a time cannot be placed well between two samples: count everything used around it.
		used := samples[len(samples)-1].CPU - samples[0].CPU
		return milli(float64(used), max(to.Sub(from), shortest)), limitCPUMilli(samples, from, to)
	}
	// Use between two samples is even, so the best window starts or ends at a sample
	// or at an edge.
	best, used := from, 0.0
	try := func(start time.Time) {
		if start.Before(from) || start.Add(peakWindow).After(to) {
			return
		}
		if in := between(samples, start, start.Add(peakWindow), cpuOf); in > used {
			best, used = start, in
		}
	}
	try(from)
	try(to.Add(-peakWindow))
	for _, s := range samples {
		try(s.at)
		try(s.at.Add(-peakWindow))
	}
	return milli(used, peakWindow), limitCPUMilli(samples, best, best.Add(peakWindow))
}

// limitCPUMilli returns the mean of the limits in force between from and to, which the samples
// enclose; 0 if there was none at some time. When exactly a limit changed between two samples is
// not known, so the larger one counts.
func limitCPUMilli(samples []sample, from, to time.Time) int64 {
	var sum float64
	for i := 1; i < len(samples); i++ {
		before, after := samples[i-1], samples[i]
		in := min(after.at.Sub(from), to.Sub(from)) - max(before.at.Sub(from), 0)
		if in <= 0 {
			continue
		}
		limit := most(before.Limit.CPUMilli, after.Limit.CPUMilli)
		if limit == 0 {
			return 0
		}
		sum += float64(limit) * float64(in)
	}
	return int64(sum/float64(to.Sub(from)) + 0.5)
}

func milli(used float64, in time.Duration) int64 {
	return int64(used*1000/float64(in) + 0.5)
}

func cpuOf(s sample) time.Duration       { return s.CPU }
func throttledOf(s sample) time.Duration { return s.Throttled }

// between returns by how much a counter grew, in nanoseconds, during a time within the samples.
func between(samples []sample, from, to time.Time, counter func(sample) time.Duration) float64 {
	return interpolate(samples, to, counter) - interpolate(samples, from, counter)
}

// interpolate returns a counter, in nanoseconds, at a time within the samples.
func interpolate(samples []sample, at time.Time, counter func(sample) time.Duration) float64 {
	i := sort.Search(len(samples), func(i int) bool { return !samples[i].at.Before(at) })
	after := samples[min(i, len(samples)-1)]
	if i == 0 || i == len(samples) || after.at.Equal(at) {
		return float64(counter(after))
	}
	before := samples[i-1]
	share := float64(at.Sub(before.at)) / float64(after.at.Sub(before.at))
	return float64(counter(before)) + share*float64(counter(after)-counter(before))
}
