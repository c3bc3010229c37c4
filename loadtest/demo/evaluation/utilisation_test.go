package evaluation

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"libra.dev/libra/pkg/api"
)

// look is a sample of big, so many milliseconds after the start.
func look(atMS int, cpu time.Duration, mebibytes, limitMilli int64) Sample {
	limit := api.Resources{CPUMilli: limitMilli, MemoryBytes: limitMilli * mebibyte / 10}
	return Sample{At: start.Add(time.Duration(atMS) * time.Millisecond),
		Functions: map[string]Usage{"big": {CPU: cpu, Memory: mebibytes * mebibyte, Limit: limit}}}
}

func TestUtilisationWithARequestInFlight(t *testing.T) {
	second := time.Second
	for name, c := range map[string]struct {
		ms          []float64 // of requests sent a second after the other
		samples     []Sample
		cpu, memory float64
	}{
		"half of the time in flight": {
			[]float64{500, 500}, []Sample{look(0, 0, 50, 1000), look(2000, second/2, 50, 1000)}, 0.5, 0.5,
		},
		"overlapping requests count once": {
			[]float64{1500, 1000}, []Sample{look(0, 0, 100, 1000), look(3000, second, 100, 1000)}, 0.5, 1,
		},
		"over the user allocation, whatever limit is in force": {
			[]float64{1000}, []Sample{look(0, 0, 25, 4000), look(1000, 2*second, 25, 4000)}, 2, 0.25,
		},
		"no limit in force": {
			[]float64{1000}, []Sample{look(0, 0, 25, 0), look(1000, 2*second, 25, 0)}, 2, 0.25,
		},
		"memory is that of the sample before": {
			[]float64{1000}, []Sample{look(0, 0, 20, 1000), look(500, 0, 40, 1000), look(1000, 0, 90, 1000)}, 0, 0.3,
		},
		"memory before the first sample and after the last": {
			[]float64{1000}, []Sample{look(250, 0, 20, 1000), look(500, 0, 40, 1000)}, 0, 0.3,
		},
		"a container that was restarted": {
			[]float64{1000}, []Sample{look(0, 5*second, 0, 1000), look(400, 5*second+second/4, 0, 1000), look(800, second/2, 0, 1000)}, 0.75, 0,
		},
		"one sample says nothing":    {[]float64{1000}, []Sample{look(0, 0, 50, 1000)}, none, none},
		"nothing was ever in flight": {nil, []Sample{look(0, 0, 50, 1000), look(1000, second, 50, 1000)}, none, none},
	} {
		r := run(Libra, Mixed, 1, c.ms...)
		r.Samples = c.samples
		got := r.inFlight(twoFunctions)
		if !approximately(got.CPU, c.cpu) || !approximately(got.Memory, c.memory) {
			t.Errorf("%s: got %v, want %v and %v", name, got, c.cpu, c.memory)
		}
	}
}

func TestUtilisationRatioIsOfTheMedians(t *testing.T) {
	var runs []Run
	for i, cpu := range []time.Duration{100, 200, 900} {
		stock, libra := run(Stock, Mixed, i+1, 1000), run(Libra, Mixed, i+1, 1000)
		stock.Samples = []Sample{look(0, 0, 10, 1000), look(1000, cpu*time.Millisecond, 10, 1000)}
		libra.Samples = []Sample{look(0, 0, 30, 1000), look(1000, 400*time.Millisecond, 30, 1000)}
		runs = append(runs, stock, libra)
	}
	check(t, dataOf(runs...), map[string]float64{"cpu_util_ratio_libra_mixed": 2, "mem_util_ratio_libra_mixed": 3})
}

func TestUtilisationOverTimeIsOfTheLimitsInForce(t *testing.T) {
	r := run(Libra, Mixed, 1, 1000, 1000, 500)
	r.Samples = []Sample{
		look(-1000, 0, 10, 1000),
		look(0, 0, 50, 1000),
		look(1000, 500*time.Millisecond, 50, 2000),
		look(2000, 1500*time.Millisecond, 25, 0),
		look(4000, 2500*time.Millisecond, 0, 1000),
	}
	got := r.overTime(twoFunctions)
	want := []Moment{
		{0, Utilisation{0.5, 0.5}},
		{1, Utilisation{0.5, 0.25}},
		{2, Utilisation{0.5, 0.25}}, // no limit: the user allocation
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i].Second != want[i].Second || !approximately(got[i].CPU, want[i].CPU) || !approximately(got[i].Memory, want[i].Memory) {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
}

func TestAUnionIsAsLongAsWhatItCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const length = 50
		var covered [length]bool
		var intervals []interval
		for range rapid.IntRange(0, 10).Draw(t, "n") {
			from := rapid.Int64Range(0, length-1).Draw(t, "from")
			to := rapid.Int64Range(from, length).Draw(t, "to")
			intervals = append(intervals, interval{from * 1e9, to * 1e9})
			for i := from; i < to; i++ {
				covered[i] = true
			}
		}
		from := rapid.Int64Range(0, length-1).Draw(t, "look from")
		to := rapid.Int64Range(from, length).Draw(t, "look to")
		want := 0.0
		for _, c := range covered[from:to] {
			if c {
				want++
			}
		}
		if got := (interval{from * 1e9, to * 1e9}).within(union(intervals)); got != want {
			t.Fatalf("%v from %d to %d: got %v, want %v", intervals, from, to, got, want)
		}
	})
}
