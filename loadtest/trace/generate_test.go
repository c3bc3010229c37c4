package trace

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestGenerateHasTheStatisticsItIsGiven(t *testing.T) {
	tr, err := Generate(1, Azure2019, 2000, 480)
	if err != nil {
		t.Fatal(err)
	}
	got := Measure(tr)
	near := func(what string, got, want, most float64) {
		t.Helper()
		if !(math.Abs(got-want) <= most) {
			t.Errorf("%s: %.3g, want %.3g ± %.2g", what, got, want, most)
		}
	}
	// alike compares quantities that spread over orders of magnitude: they may
	// differ by a factor, except where they are next to nothing.
	alike := func(what string, got, want, factor float64) {
		t.Helper()
		near(what+", log(1 + x)", math.Log1p(got), math.Log1p(want), math.Log(factor))
	}
	for _, g := range []struct {
		name      string
		got, want Group
	}{{"timers", got.Timers, Azure2019.Timers}, {"others", got.Others, Azure2019.Others}} {
		near(g.name+": share", g.got.Share, g.want.Share, 0.001)
		for class := range g.want.Rates {
			near(g.name+": rate class", g.got.Rates[class], g.want.Rates[class], 0.06)
		}
		for _, i := range []int{2, 3, 4} {
			alike(g.name+": median duration", g.got.MedianMS[i], g.want.MedianMS[i], 1.5)
		}
	}
	// Generated calls are no more regular than chance, except for timers.
	near("timers: dispersion at its largest", got.Timers.Dispersion[6], 1, 0.3)
	for _, i := range []int{3, 4} {
		alike("others: dispersion", got.Others.Dispersion[i], Azure2019.Others.Dispersion[i], 1.5)
	}
	for _, i := range []int{2, 3, 4} {
		alike("memory", got.MemoryMB[i], Azure2019.MemoryMB[i], 1.2)
		alike("middle", got.Middle[i], Azure2019.Middle[i], 1.3)
		alike("tail", got.Tail[i], Azure2019.Tail[i], 1.5)
	}
}

func TestGenerateFollowsFromItsSeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		functions, minutes := rapid.IntRange(1, 40).Draw(t, "functions"), rapid.IntRange(1, 200).Draw(t, "minutes")
		tr, err := Generate(seed, Azure2019, functions, minutes)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := Generate(seed, Azure2019, functions+5, minutes)
		if diff := cmp.Diff(tr.Functions, again.Functions[:functions]); diff != "" {
			t.Fatalf("a trace of more functions begins otherwise (-fewer +more):\n%s", diff)
		}
		if len(tr.Functions) != functions || tr.Minutes != minutes {
			t.Fatalf("%d functions and %d minutes, want %d and %d", len(tr.Functions), tr.Minutes, functions, minutes)
		}
		for _, f := range tr.Functions {
			if err := f.Durations.check(); err != nil {
				t.Errorf("%s: %v", f.ID, err)
			}
			if len(f.PerMinute) != minutes || f.total(0, minutes) == 0 || f.MemoryMB <= 0 {
				t.Errorf("%s has %d minutes, %d calls, %v MB", f.ID, len(f.PerMinute), f.total(0, minutes), f.MemoryMB)
			}
			for _, n := range f.PerMinute {
				if n < 0 {
					t.Errorf("%s has %d calls in a minute", f.ID, n)
				}
			}
		}
	})
}

func TestGenerateRefusesEmptyTraces(t *testing.T) {
	for _, c := range [][2]int{{0, 10}, {10, 0}, {-1, 10}} {
		if _, err := Generate(1, Azure2019, c[0], c[1]); err == nil {
			t.Errorf("%d functions and %d minutes: no error", c[0], c[1])
		}
	}
}

func TestMeasureOfTimersAndBursts(t *testing.T) {
	s := Measure(Trace{Minutes: 4, Functions: []Function{
		{Trigger: TriggerTimer, PerMinute: []int32{1, 1, 1, 1}, Durations: Durations{9, 9, 9, 9, 9, 9, 9}, MemoryMB: 10},
		{Trigger: "http", PerMinute: []int32{8, 0, 0, 0}, Durations: Durations{0, 0, 0, 4, 9, 99, 99}},
	}})
	if d := s.Timers.Dispersion[3]; d != 0 {
		t.Errorf("dispersion of a clock: %v, want 0", d)
	}
	// Mean 2, variance 12.
	if d := s.Others.Dispersion[3]; d != 6 {
		t.Errorf("dispersion of a burst: %v, want 6", d)
	}
	if want := (RateClasses{0, 0, 1, 0}); s.Others.Rates != want || s.Timers.Rates != want {
		t.Errorf("rate classes: %v and %v, want %v", s.Others.Rates, s.Timers.Rates, want)
	}
	if s.Middle[6] != 9 || s.Tail[6] != 19 || s.MemoryMB[0] != 10 || s.Timers.Share != 0.5 {
		t.Errorf("got %+v", s)
	}
}
