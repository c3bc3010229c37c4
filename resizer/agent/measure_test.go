package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
	"libra.dev/libra/resizer/cgroup"
)

var epoch = time.Unix(1_000_000, 0)

func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// steady returns samples every 25 ms from start to end, in ms, of a container that uses what
// milliAt says at each.
func steady(start, end int, limit api.Resources, milliAt func(ms int) int) []sample {
	var samples []sample
	var cpu time.Duration
	for ms := start; ms <= end; ms += 25 {
		samples = append(samples, sample{at(ms), cgroup.Reading{CPU: cpu, Memory: int64(ms), Limit: limit}})
		cpu += 25 * time.Millisecond * time.Duration(milliAt(ms)) / 1000
	}
	return samples
}

func TestMeasure(t *testing.T) {
	limit := api.Resources{CPUMilli: 1000, MemoryBytes: 1 << 20}
	constant := func(milli int) func(int) int { return func(int) int { return milli } }
	burst := func(ms int) int { // 900m in [500, 600)
		if ms >= 500 && ms < 600 {
			return 900
		}
		return 100
	}
	with := func(samples []sample, f func([]sample)) []sample { f(samples); return samples }

	tests := map[string]struct {
		samples  []sample
		from, to int // ms
		want     measurement
		no       bool
	}{
		"even use": {
			samples: steady(0, 1000, limit, constant(300)), from: 110, to: 890,
			want: measurement{cpuTime: 234 * time.Millisecond, peak: api.Resources{CPUMilli: 300, MemoryBytes: 900}, limit: limit, limitAtPeak: limit},
		},
		"a burst of one window": {
			samples: steady(0, 1000, limit, burst), from: 100, to: 900,
			want: measurement{cpuTime: 160 * time.Millisecond, peak: api.Resources{CPUMilli: 900, MemoryBytes: 900}, limit: limit, limitAtPeak: limit},
		},
		"only a part of the burst": {
			samples: steady(0, 1000, limit, burst), from: 100, to: 550,
			want: measurement{cpuTime: 85 * time.Millisecond, peak: api.Resources{CPUMilli: 500, MemoryBytes: 550}, limit: limit, limitAtPeak: limit},
		},
		"shorter than a window: all that was used around it": {
			samples: steady(0, 1000, limit, constant(300)), from: 110, to: 160,
			want: measurement{cpuTime: 15 * time.Millisecond, peak: api.Resources{CPUMilli: 450, MemoryBytes: 175}, limit: limit, limitAtPeak: limit},
		},
		"shorter than a sample": {
			samples: steady(0, 1000, limit, constant(300)), from: 110, to: 112,
			want: measurement{cpuTime: 600 * time.Microsecond, peak: api.Resources{CPUMilli: 300, MemoryBytes: 125}, limit: limit, limitAtPeak: limit},
		},
		"the least limit": {
			samples: with(steady(0, 1000, limit, constant(300)), func(s []sample) {
				s[10].Limit = api.Resources{CPUMilli: 400, MemoryBytes: 1 << 20}
				s[12].Limit = api.Resources{CPUMilli: 500}
			}), from: 110, to: 890,
			want: measurement{cpuTime: 234 * time.Millisecond, peak: api.Resources{CPUMilli: 300, MemoryBytes: 900}, limit: api.Resources{CPUMilli: 400, MemoryBytes: 1 << 20}, limitAtPeak: limit},
		},
		"lent more in the midst of it, and used": {
			samples: with(steady(0, 1000, limit, burst), func(s []sample) {
				for i := range s { // half of the burst's window is before and half after
					if s[i].at.Before(at(550)) {
						s[i].Limit = api.Resources{CPUMilli: 500, MemoryBytes: 600}
					}
				}
			}), from: 110, to: 890,
			want: measurement{
				cpuTime: 158 * time.Millisecond, peak: api.Resources{CPUMilli: 900, MemoryBytes: 900},
				limit: api.Resources{CPUMilli: 500, MemoryBytes: 600},
				// From the last sample with the lower limit on, the higher one may have been in force.
				limitAtPeak: api.Resources{CPUMilli: 875, MemoryBytes: 1 << 20},
			},
		},
		"lent more after its peak": {
			samples: with(steady(0, 1000, limit, burst), func(s []sample) {
				for i := range s[:30] {
					s[i].Limit, s[i].Memory = api.Resources{CPUMilli: 900, MemoryBytes: 600}, 550
				}
				for i := range s[30:] {
					s[30+i].Memory = 500
				}
			}), from: 110, to: 890,
			want: measurement{
				cpuTime: 158 * time.Millisecond, peak: api.Resources{CPUMilli: 900, MemoryBytes: 550},
				limit:       api.Resources{CPUMilli: 900, MemoryBytes: 600},
				limitAtPeak: api.Resources{CPUMilli: 900, MemoryBytes: 600},
			},
		},
		"as much memory before as after it was lent more": {
			samples: with(steady(0, 1000, limit, constant(300)), func(s []sample) {
				for i := range s {
					s[i].Memory = 550
				}
				s[20].Limit.MemoryBytes = 600
			}), from: 110, to: 890,
			want: measurement{
				cpuTime: 234 * time.Millisecond, peak: api.Resources{CPUMilli: 300, MemoryBytes: 550},
				limit: api.Resources{CPUMilli: 1000, MemoryBytes: 600}, limitAtPeak: limit,
			},
		},
		"without a limit for a part of it": {
			samples: with(steady(0, 1000, limit, constant(300)), func(s []sample) {
				for i := range s {
					s[i].Memory = 550
				}
				s[20].Limit = api.Resources{}
			}), from: 480, to: 520,
			want: measurement{
				cpuTime: 12 * time.Millisecond, peak: api.Resources{CPUMilli: 375, MemoryBytes: 550}, limit: limit,
			},
		},
		"throttled for a quarter of it": {
			samples: with(steady(0, 1000, limit, constant(300)), func(s []sample) {
				for i := range s[21:] {
					s[21+i].Throttled = 200 * time.Millisecond
				}
			}), from: 100, to: 900,
			want: measurement{cpuTime: 240 * time.Millisecond, peak: api.Resources{CPUMilli: 300, MemoryBytes: 900}, limit: limit, limitAtPeak: limit, throttledShare: 0.25},
		},
		"throttled on several CPUs at once": {
			samples: with(steady(0, 1000, limit, constant(300)), func(s []sample) {
				for i := range s {
					s[i].Throttled = time.Duration(i) * 100 * time.Millisecond
				}
			}), from: 100, to: 900,
			want: measurement{cpuTime: 240 * time.Millisecond, peak: api.Resources{CPUMilli: 300, MemoryBytes: 900}, limit: limit, limitAtPeak: limit, throttledShare: 1},
		},
		"began before the samples": {samples: steady(200, 1000, limit, constant(300)), from: 110, to: 890, no: true},
		"ended after them":         {samples: steady(0, 800, limit, constant(300)), from: 110, to: 890, no: true},
		"a hole in them": {
			samples: append(steady(0, 300, limit, constant(300)), steady(575, 1000, limit, constant(300))...),
			from:    110, to: 890, no: true,
		},
		"no samples": {from: 0, to: 1, no: true},
		"no time":    {samples: steady(0, 1000, limit, constant(300)), from: 500, to: 500, no: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := measure(tc.samples, at(tc.from), at(tc.to), sampleEvery)
			if ok == tc.no {
				t.Fatalf("covered = %v, want %v", ok, !tc.no)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(measurement{})); ok && diff != "" {
				t.Errorf("measurement (-want +got):\n%s", diff)
			}
		})
	}
}

// For an invocation longer than a window, the peak is the best of all windows, found here by trying
// one at each millisecond. It is at least the mean.
func TestPeakIsTheBestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var samples []sample
		ms, cpu := 0, time.Duration(0)
		for range rapid.IntRange(10, 60).Draw(t, "samples") {
			samples = append(samples, sample{at(ms), cgroup.Reading{CPU: cpu}})
			step := rapid.IntRange(1, 60).Draw(t, "step ms")
			ms += step
			cpu += time.Duration(rapid.IntRange(0, 4*step).Draw(t, "used ms")) * time.Millisecond
		}
		end := int(samples[len(samples)-1].at.Sub(epoch).Milliseconds())
		if end <= 101 {
			t.Skip("too short for a window")
		}
		from := rapid.IntRange(0, end-101).Draw(t, "from")
		to := rapid.IntRange(from+101, end).Draw(t, "to")
		m, ok := measure(samples, at(from), at(to), sampleEvery)
		if !ok {
			t.Fatal("not covered")
		}
		used := func(a, b int) float64 {
			return interpolate(samples, at(b), cpuOf) - interpolate(samples, at(a), cpuOf)
		}
		var best float64
		for start := from; start+100 <= to; start++ {
			best = max(best, used(start, start+100))
		}
		if want := milli(best, peakWindow); m.peak.CPUMilli != want {
			t.Errorf("peak %dm, want %dm", m.peak.CPUMilli, want)
		}
		// The mean is taken over whole windows: a last, partial one could raise it above all of them.
		if whole := (to - from) / 100 * 100; milli(used(from, from+whole), time.Duration(whole)*time.Millisecond) > m.peak.CPUMilli {
			t.Errorf("peak %dm is below the mean", m.peak.CPUMilli)
		}
	})
}

// The CPU time is off by no more than what was used between the samples around its edges, whatever
// the use was. The CPU time of an interval is the sum of those of its parts.
func TestCPUTimeIsOffByWhatWasUsedAtItsEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const end = 600
		used := make([]time.Duration, end+1) // of several CPUs, up to each millisecond
		for ms := 1; ms <= end; ms++ {
			used[ms] = used[ms-1] + time.Duration(rapid.IntRange(0, 4000).Draw(t, "used in a ms"))*time.Microsecond
		}
		var samples []sample
		for ms := 0; ms <= end; ms += 25 {
			samples = append(samples, sample{at(ms), cgroup.Reading{CPU: used[ms]}})
		}
		from := rapid.IntRange(0, end-2).Draw(t, "from")
		to := rapid.IntRange(from+2, end).Draw(t, "to")
		cpuTime := func(from, to int) time.Duration {
			m, ok := measure(samples, at(from), at(to), sampleEvery)
			if !ok {
				t.Fatalf("%d to %d ms is not covered", from, to)
			}
			return m.cpuTime
		}
		around := func(ms int) time.Duration { return used[(ms+24)/25*25] - used[ms/25*25] }
		got := cpuTime(from, to)
		if off := (got - (used[to] - used[from])).Abs(); off > around(from)+around(to)+1 {
			t.Errorf("from %d to %d ms it is off by %v, want at most %v and %v", from, to, off, around(from), around(to))
		}
		between := rapid.IntRange(from+1, to-1).Draw(t, "between")
		if sum := cpuTime(from, between) + cpuTime(between, to); (sum - got).Abs() > 2 {
			t.Errorf("the parts of %v add up to %v", got, sum)
		}
	})
}

// An End that waited tells of a time between two samples. Everything used between the two was used
// before it.
func TestObserveWhatEndedAWhileAgo(t *testing.T) {
	c := &container{}
	used := func(ms int) time.Duration { // from 500 to 535 ms, on one CPU
		return time.Duration(min(max(ms-500, 0), 35)) * time.Millisecond
	}
	for ms := 0; ms <= 575; ms += 25 {
		c.keep(sample{at(ms), cgroup.Reading{CPU: used(ms), Memory: int64(ms)}})
	}
	for _, ago := range []int{0, 12, 40} {
		o, ok := c.observe(api.Ended{Duration: 35 * time.Millisecond, Ago: time.Duration(ago) * time.Millisecond}, at(535+ago), time.Time{})
		if !ok {
			t.Fatalf("%d ms ago: not covered", ago)
		}
		want := 35 * time.Millisecond
		if ago == 0 { // when exactly it ended between the samples around it is not known
			want = time.Duration(used(525) + (used(550)-used(525))*10/25)
		}
		if o.CPUTime != want || o.Ago != 0 || o.Duration != 35*time.Millisecond {
			t.Errorf("%d ms ago: %+v, want a CPU time of %v", ago, o, want)
		}
	}
}

// A wait that is not urgent ends at a multiple of sampleEvery, and an urgent one exactly when it is
// due.
func TestTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := epoch.Add(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "now")))
		asked := time.Duration(rapid.Int64Range(0, int64(200*time.Millisecond)).Draw(t, "wait"))
		wait := together(now, asked)
		switch {
		case asked < rankedEvery:
			if wait != asked {
				t.Errorf("%v becomes %v", asked, wait)
			}
		case wait < asked || wait >= asked+sampleEvery:
			t.Errorf("%v becomes %v, want less than %v more", asked, wait, sampleEvery)
		case now.Add(wait).UnixNano()%int64(sampleEvery) != 0:
			t.Errorf("%v after %v is no multiple of %v", wait, now, sampleEvery)
		}
	})
}

func TestHowOftenAContainerIsSampled(t *testing.T) {
	working := func(ranked bool, leaves int) *container {
		c := &container{thinning: thinning{observed: observeFreely, at: epoch, skip: leaves}}
		c.ranked.Store(ranked)
		c.wanted(epoch.Add(time.Second))
		return c
	}
	told := func(c *container) *container {
		c.told.Store(true)
		return c
	}
	rested := func(c *container, from, to time.Duration) *container {
		c.activity.add(epoch.Add(from), 0)
		c.activity.add(epoch.Add(to), 0)
		return c
	}
	sleeping := func() *container { return rested(working(true, 0), -sleepTime, 0) }
	filled := func(c *container) *container {
		c.fills.Store(true)
		return c
	}
	for _, tc := range []struct {
		name string
		c    *container
		want time.Duration
	}{
		{"that sleeps", told(sleeping()), sleepEvery},
		{"that sleeps, not told of requests", sleeping(), rankedEvery},
		{"that sleeps and fills its memory", filled(told(sleeping())), restEvery},
		{"that slept too long ago", told(rested(working(true, 0), -time.Minute, -sleepEvery-longestGap-1)), rankedEvery},
		{"that rests", told(rested(working(true, 0), 1-sleepTime, 0)), restEvery},
		{"of which each is observed", working(true, 0), rankedEvery},
		{"with requests, of which the next is left out", working(true, 2), leftOutEvery},
		{"without, of which the next is left out", told(working(true, 2)), restEvery},
		{"of which the next is observed", working(true, 1), rankedEvery},
		{"which lends", working(false, 2), sampleEvery},
	} {
		if got := tc.c.every(epoch); got != tc.want {
			t.Errorf("one %s: every %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A container that uses less than leastUse in each restTime rests, however seldom it is sampled.
// One that uses more is found within a sleepEvery.
func TestSleepersWake(t *testing.T) {
	for cpuMilli := int64(0); cpuMilli < 40; cpuMilli++ {
		clk := clocktesting.NewFakeClock(epoch)
		c := &container{cgroup: evenCgroup{now: clk.Now, cpuMilli: cpuMilli}}
		c.told.Store(true)
		wakes, slept := 0, false
		for clk.Since(epoch) < time.Minute {
			woke, err := c.sample(clk.Now)
			if err != nil {
				t.Fatal(err)
			}
			if woke {
				wakes++
			}
			every := c.every(clk.Now())
			slept = slept || every == sleepEvery
			clk.Step(every)
		}
		switch rests := cpuMilli < 10; {
		case rests && (wakes > 0 || !slept):
			t.Errorf("%dm: it woke %d times; it slept: %v", cpuMilli, wakes, slept)
		case !rests && (wakes != 1 || slept):
			t.Errorf("%dm: it woke %d times; it slept: %v", cpuMilli, wakes, slept)
		}
	}
}

// Sleeping containers are sampled together, every half second, whenever they fell asleep, and none
// of them later.
func TestSleepersAreSampledTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clk := clocktesting.NewFakeClock(epoch)
		a, _, err := New(clk, nil, nil, nil, Settings{}, Redis{}, sdkmetric.NewMeterProvider(), tracenoop.NewTracerProvider())
		if err != nil {
			t.Fatal(err)
		}
		wakeUps := 0
		add := func(pod string) {
			c := &container{id: pod, cgroup: constantCgroup{}}
			c.told.Store(true)
			a.containers.put(pod, c)
		}
		last := map[string]time.Time{}
		pass := func(d time.Duration) {
			for until := clk.Now().Add(d); clk.Now().Before(until); wakeUps++ {
				now := clk.Now()
				wait := a.sampleDue(t.Context())
				for _, s := range a.containers.all() {
					if before, ok := last[s.pod]; ok && s.activity.at.Sub(before) > sleepEvery+sampleEvery {
						t.Fatalf("%s was not sampled for %v", s.pod, s.activity.at.Sub(before))
					}
					last[s.pod] = s.activity.at
				}
				clk.Step(together(now, wait))
			}
		}
		for i, gap := range rapid.SliceOfN(rapid.IntRange(0, 900), 1, 5).Draw(t, "gaps") {
			add(fmt.Sprintf("default/p%d", i))
			pass(time.Duration(gap) * time.Millisecond)
		}
		pass(sleepTime + 2*time.Second)
		wakeUps = 0
		const seconds = 10
		pass(seconds * time.Second)
		if most := seconds*int(time.Second/sleepEvery) + 1; wakeUps > most {
			t.Fatalf("the agent woke up %d times in %d s to sample what sleeps, want %d", wakeUps, seconds, most)
		}
	})
}
